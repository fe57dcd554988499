"""The command line: one source of defaults, readable help, and mistakes that end in one line."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from server import cli
from server.settings import Settings, SettingsError, engine_config, env_name

runner = CliRunner()


def egglm(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`egglm ARGUMENTS` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


class TestSettings:
    def test_every_option_has_its_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given = {
            "model": "some/path",
            "host": "0.0.0.0",
            "port": "9001",
            "served_model_name": "a,b",
            "device": "reference",
            "quantize": "int8",
            "threads": "3",
            "max_model_len": "2048",
            "max_num_seqs": "8",
            "max_batch_tokens": "128",
            "max_queue": "5",
            "kv_cache_memory": "1.5GiB",
            "prefix_cache": "false",
            "search_time_limit": "2.5",
            "cache_dir": "/tmp/cache",
            "api_key": "one, two",
            "drain_timeout": "1",
            "max_body_size": "1MB",
            "sse_keep_alive": "3",
            "metrics_compat": "vllm",
            "log_level": "DEBUG",
        }
        assert given.keys() == Settings.model_fields.keys()
        for field, value in given.items():
            monkeypatch.setenv(env_name(field), value)
        settings = Settings()
        assert settings.port == 9001
        assert settings.served_model_name == ["a", "b"]
        assert settings.api_key == ["one", "two"]
        assert settings.kv_cache_memory == 3 * 2**29
        assert settings.max_body_size == 10**6
        assert settings.prefix_cache is False
        assert settings.log_level == "debug"
        config = engine_config(settings, Path("/tmp/cache"))
        assert (config.max_num_seqs, config.max_queue, config.threads) == (8, 5, 3)
        assert config.kv_memory_bytes == 3 * 2**29
        assert config.search_time_limit_s == 2.5

    def test_an_empty_variable_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EGGLM_MODEL", "")
        monkeypatch.setenv("EGGLM_PORT", "")
        assert (Settings().model, Settings().port) == (None, 8000)

    @pytest.mark.parametrize(
        ("text", "size"),
        [("100", 100), ("2k", 2000), ("2KiB", 2048), ("512MiB", 2**29), ("0.5 GB", 5 * 10**8)],
    )
    def test_sizes(self, text: str, size: int) -> None:
        assert Settings(kv_cache_memory=text).kv_cache_memory == size

    @pytest.mark.parametrize("text", ["much", "-1", "5XB", ""])
    def test_no_sizes(self, text: str) -> None:
        with pytest.raises(ValidationError):
            Settings(kv_cache_memory=text)

    def test_contradictions(self) -> None:
        with pytest.raises(SettingsError, match="max_batch_tokens"):
            engine_config(Settings(max_num_seqs=64, max_batch_tokens=8), Path("/tmp"))


class TestHelp:
    def test_commands(self) -> None:
        text = runner.invoke(cli.app, ["--help"]).output
        for command in ("serve", "pull", "compile", "load"):
            assert command in text

    def test_every_setting_is_an_option_of_serve(self) -> None:
        text = runner.invoke(cli.app, ["serve", "--help"], env={"COLUMNS": "200"}).output
        for field in Settings.model_fields.keys() - {"model"}:
            assert f"--{field.replace('_', '-')}" in text
            assert env_name(field) in text

    def test_version(self) -> None:
        assert runner.invoke(cli.app, ["--version"]).output.startswith("egglm ")


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--port", "99999"], "--port"),
            (["--kv-cache-memory", "lots"], "--kv-cache-memory"),
            (["--device", "abacus"], "--device"),
            (["--log-level", "loud"], "--log-level"),
        ],
    )
    def test_bad_option(self, arguments: list[str], says: str) -> None:
        result = runner.invoke(cli.app, ["serve", *arguments])
        assert result.exit_code == 2
        assert says in result.output
        assert arguments[1] in result.output

    def test_bad_variable(self) -> None:
        result = runner.invoke(cli.app, ["serve"], env={"EGGLM_PORT": "http"})
        assert result.exit_code == 2
        assert "EGGLM_PORT" in result.output

    def test_port_in_use(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ended = egglm("serve", "--port", str(port))
        assert ended.returncode == 1
        last = ended.stderr.splitlines()[-1]
        assert last.startswith(f"egglm: cannot listen on 127.0.0.1 port {port}")
        assert "Traceback" not in ended.stderr

    @pytest.mark.parametrize("command", ["serve", "pull"])
    def test_no_such_model(self, command: str, tmp_path: Path) -> None:
        arguments = [command, str(tmp_path / "nothing.gguf")]
        ended = egglm(*arguments, *(["--port", "0"] if command == "serve" else []))
        assert ended.returncode == 1
        assert "nothing.gguf" in ended.stderr.splitlines()[-1]
        assert "Traceback" not in ended.stderr

    def test_contradicting_settings(self) -> None:
        ended = egglm("serve", "--max-num-seqs", "64", "--max-batch-tokens", "8")
        assert ended.returncode == 1
        assert "max_batch_tokens" in ended.stderr.splitlines()[-1]
