"""What is logged of a finished request: figures, never text."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.generation.run import Usage


class RequestRecord:
    """Fills up while a request is served; the outermost middleware logs it as one JSON line."""

    def __init__(self, request_id: str, arrived_s: float) -> None:
        self.request_id = request_id
        self.arrived_s = arrived_s
        """`time.monotonic` seconds."""
        self.status: int | None = None
        """Overrides the status that went over the wire, for streams that failed after their 200."""
        self._figures: dict[str, Any] = {}

    def note(self, **figures: Any) -> None:
        self._figures |= figures

    def first_token(self, now_s: float) -> None:
        """The first token of any choice came."""
        self._figures.setdefault("ttft_s", round(now_s - self.arrived_s, 6))

    def queued(self, queue_s: float) -> None:
        self._figures["queue_s"] = round(max(queue_s, self._figures.get("queue_s", 0.0)), 6)

    def token_gap(self, gap_s: float) -> None:
        """A choice's mean time between tokens; the slowest choice's is kept."""
        self._figures["itl_s"] = round(max(gap_s, self._figures.get("itl_s", 0.0)), 6)

    def ended(self, usage: "Usage", finish_reasons: list[str]) -> None:
        self._figures |= usage._asdict()
        unlike = dict.fromkeys(finish_reasons)
        self._figures["finish_reason"] = ",".join(unlike)

    def line(self, method: str, path: str, status: int, now_s: float) -> dict[str, Any]:
        """The log line's fields."""
        return {
            "id": self.request_id,
            "method": method,
            "path": path,
            "status": self.status or status,
            "e2e_s": round(now_s - self.arrived_s, 6),
            **self._figures,
        }
