"""The `egglm` command. Subcommands import what they need, so that `--help` answers at once."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from server.settings import Settings, env_name
from server.version import program_version

app = typer.Typer(
    name="egglm",
    help="Serve a language model, compiled for this machine, behind an OpenAI-compatible API.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _option(field: str, *names: str) -> Any:
    """The option for a field of `Settings`, with its help, default and environment variable."""
    info = Settings.model_fields[field]
    plain = info.default in (None, [])
    shown = "" if plain else f" [default: {_default(info.default)}]"
    names = names or (f"--{field.replace('_', '-')}",)
    return typer.Option(
        *names, help=f"{info.description}{shown} [env: {env_name(field)}]", show_default=False
    )


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value >> 20}MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help=f"{Settings.model_fields['model'].description} [env: {env_name('model')}]",
        show_default=False,
    ),
]
Text = str | None
Whole = int | None
Number = float | None
Several = list[str] | None

CacheDir = Annotated[Path | None, _option("cache_dir")]
LogLevel = Annotated[Text, _option("log_level")]
Device = Annotated[Text, _option("device")]
Quantize = Annotated[Text, _option("quantize")]
Threads = Annotated[Whole, _option("threads")]
MaxModelLen = Annotated[Whole, _option("max_model_len")]
MaxNumSeqs = Annotated[Whole, _option("max_num_seqs")]
MaxBatchTokens = Annotated[Whole, _option("max_batch_tokens")]
KvCacheMemory = Annotated[Text, _option("kv_cache_memory")]
SearchTimeLimit = Annotated[Number, _option("search_time_limit")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit")] = False,
) -> None:
    if version:
        typer.echo(f"egglm {program_version()}")
        raise typer.Exit


@app.command()
def serve(
    model: Model = None,
    host: Annotated[Text, _option("host")] = None,
    port: Annotated[Whole, _option("port")] = None,
    served_model_name: Annotated[Several, _option("served_model_name")] = None,
    device: Device = None,
    quantize: Quantize = None,
    threads: Threads = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    max_queue: Annotated[Whole, _option("max_queue")] = None,
    kv_cache_memory: KvCacheMemory = None,
    prefix_cache: Annotated[
        bool | None, _option("prefix_cache", "--prefix-cache/--no-prefix-cache")
    ] = None,
    search_time_limit: SearchTimeLimit = None,
    cache_dir: CacheDir = None,
    api_key: Annotated[Several, _option("api_key")] = None,
    drain_timeout: Annotated[Number, _option("drain_timeout")] = None,
    max_body_size: Annotated[Text, _option("max_body_size")] = None,
    sse_keep_alive: Annotated[Number, _option("sse_keep_alive")] = None,
    metrics_compat: Annotated[Text, _option("metrics_compat")] = None,
    log_level: LogLevel = None,
) -> None:
    """Serve MODEL over HTTP: fetch it, compile it for this machine, answer OpenAI clients."""
    settings = _settings(locals())
    from server.launcher import run_server

    raise typer.Exit(run_server(settings))


@app.command()
def pull(model: Model = None, cache_dir: CacheDir = None) -> None:
    """Fetch MODEL into the cache folder and print where it lies."""
    settings = _settings(locals())
    from server.fetch import fetch_model

    typer.echo(_or_exit(lambda: fetch_model(settings)))


@app.command("compile")
def compile_command(
    model: Model = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Also write a report as a web page here")
    ] = None,
    device: Device = None,
    quantize: Quantize = None,
    threads: Threads = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_batch_tokens: MaxBatchTokens = None,
    kv_cache_memory: KvCacheMemory = None,
    search_time_limit: SearchTimeLimit = None,
    cache_dir: CacheDir = None,
    log_level: LogLevel = None,
) -> None:
    """Compile MODEL for this machine and print what the search found."""
    given = locals()
    given.pop("report")
    settings = _settings(given)
    from server.compile_command import compile_model

    _or_exit(lambda: compile_model(settings, report))


cache_app = typer.Typer(
    help="Show or empty the cache of models and compiled programs.", no_args_is_help=True
)
app.add_typer(cache_app, name="cache")


@cache_app.command("list")
def cache_list(cache_dir: CacheDir = None) -> None:
    """Show what the cache holds."""
    from server.cache_command import print_entries
    from server.fetch import cache_folder

    print_entries(cache_folder(_settings(locals())))


@cache_app.command("clear")
def cache_clear(
    cache_dir: CacheDir = None,
    models: Annotated[bool, typer.Option("--models", help="Model files as well")] = False,
) -> None:
    """Delete compiled programs; the next start compiles again."""
    settings = _settings({"cache_dir": cache_dir})
    from server.cache_command import clear
    from server.fetch import cache_folder

    folder = cache_folder(settings)
    typer.echo(f"freed {clear(folder, models) / (1 << 20):.1f} MiB of {folder}")


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def load(context: typer.Context) -> None:
    """Load-test any OpenAI-compatible server; `egglm load --help` lists its options."""
    from loadtest.cli import app as load_app

    load_app(args=context.args, prog_name="egglm load")


def _settings(given: dict[str, Any]) -> Settings:
    """Settings with the given options; exits with 2 and one line for each that is wrong."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            field = str(problem["loc"][0])
            message = problem["msg"].removeprefix("Value error, ")
            option = f"--{field.replace('_', '-')} ({env_name(field)})"
            typer.echo(f"egglm: {option}: {message}, not {problem['input']!r}", err=True)
        raise typer.Exit(2) from None


def _or_exit(run: Any) -> Any:
    """`run()`; an error that the user can mend becomes one line and exit code 1."""
    from server.user_errors import user_message

    try:
        return run()
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        typer.echo(f"egglm: {message}", err=True)
        raise typer.Exit(1) from None


def main() -> None:
    """The console script."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
