"""The report of a search as one web page that needs no network."""

from collections.abc import Sequence
from html import escape

from engine.compiler.report import BucketReport, OpRow, duration, size

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; color: #1c2733; background: #fff }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #e3e8ee; white-space: nowrap }
th:first-child, td:first-child { text-align: left; white-space: normal }
td:first-child { font-family: ui-monospace, monospace; font-size: 12px }
.bar { background: #dce9f7; display: block; height: .7rem; border-radius: 2px }
.facts { color: #52606d }
"""


def page(model: str, reports: Sequence[BucketReport]) -> str:
    """HTML with a section a bucket: what was searched, and the winner's ops by their share of the time."""
    sections = "\n".join(_section(report) for report in reports)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(model)}: compiled programs</title>'
        f"<style>{_STYLE}</style><h1>{escape(model)}</h1>{sections}</html>\n"
    )


def _section(report: BucketReport) -> str:
    total = sum(row.seconds for row in report.rows) or 1.0
    dims = ", ".join(f"{k} = {v}" for k, v in report.dims.items())
    rejected = ", ".join(f"{n} {escape(reason)}" for reason, n in report.rejected.items()) or "none"
    rows = "".join(_row(row, total) for row in report.rows)
    return (
        f"<h2>{escape(report.name)}</h2>"
        f'<p class="facts">timed at {escape(dims)}; {report.classes} classes, {report.nodes} e-nodes, '
        f"about {report.candidates:.1e} candidates; {report.ranked} ranked, {report.timed_ops} ops "
        f"({report.remembered_ops} more were timed before) and {report.timed_programs} programs timed "
        f"in {report.search_s:.1f} s; rejected: {rejected}</p>"
        f"<p>first (cheapest by roofline): <b>{duration(report.first_s)}</b>, "
        f"winner: <b>{duration(report.best_s)}</b></p>"
        "<table><tr><th>op<th>runs<th>time<th>share<th>loaded<th>stored<th>GB/s<th>GFLOP/s</tr>"
        f"{rows}</table>"
    )


def _row(row: OpRow, total: float) -> str:
    seconds = row.seconds or float("inf")
    share = row.seconds / total
    return (
        f"<tr><td>{escape(row.name)}<td>{row.executions}<td>{duration(row.seconds)}"
        f'<td><span class="bar" style="width:{share * 8:.2f}rem"></span>'
        f"<td>{size(row.loaded)}<td>{size(row.stored)}"
        f"<td>{(row.loaded + row.stored) / seconds / 1e9:.2f}<td>{row.flops / seconds / 1e9:.1f}</tr>"
    )
