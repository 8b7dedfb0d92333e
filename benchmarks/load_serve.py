"""What ``distilcal serve`` does under load: many clients at a time, more than it admits, and a start after ``kill -9``.

Every client keeps one connection and sends its next request as soon as the last is answered, so that as many requests are
under way as there are clients. The first part stays below ``--max-requests`` of the service, the second is far above it. Texts
have 5 to 40 words. Server and clients share the machine. Needs Linux, for the memory of the server.

    python benchmarks/load_serve.py                             # MiniLM of three layers, in 8 bits and as a folder
    python benchmarks/load_serve.py student.onnx --clients 200 --seconds 60
    python benchmarks/load_serve.py student.onnx runs/reviews   # starts both, loads the first
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

WORDS = "the a film plot of with it was never always quite good bad slow actors music scene ending and but".split()  # noqa: SIM905
LIMIT = 256  # --max-requests of the service unless it is told otherwise
EARLY_SECONDS = 10.0  # after which memory is measured for the first time
START_SECONDS = 120.0  # in which a service must answer for the first time
TARGET_START, TARGET_RATIO, TARGET_GROWTH = 2.0, 5.0, 1.05
BUILD = """
from distilcal.config.schema import ModelSettings
from distilcal.export import as_student
from distilcal.models import build_classifier
from bench_export import MINILM, sentences
data = sentences(200)
student = as_student(build_classifier(ModelSettings(name=MINILM, layers=(0, 2, 4), head="new"), data))
student.save_pretrained("minilm")
student.export_onnx("minilm-int8.onnx", int8=True, dev=data)
"""


@dataclass
class Load:
    """What clients saw of a service, and its memory."""

    clients: int
    limit: int
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)  # status codes, and names of exceptions
    without_retry_after: int = 0
    latencies: list[float] = field(default_factory=list)  # seconds, of answers with status 200
    early_memory: int = 0  # bytes
    late_memory: int = 0

    def summary(self) -> dict[str, float | int | dict[str, int]]:
        median, p99 = np.percentile(self.latencies, [50, 99]) if self.latencies else (np.nan, np.nan)
        return {
            "clients": self.clients,
            "limit": self.limit,
            "seconds": round(self.seconds, 1),
            "statuses": dict(self.statuses),
            "answers_per_second": round(len(self.latencies) / self.seconds, 1),
            "median_ms": round(1000 * float(median), 1),
            "p99_ms": round(1000 * float(p99), 1),
            "p99_over_median": round(float(p99 / median), 2),
            "early_mb": round(self.early_memory / 1e6, 1),
            "late_mb": round(self.late_memory / 1e6, 1),
        }


@dataclass(frozen=True)
class Judgement:
    """A requirement, and whether it was met."""

    requirement: str
    met: bool


# ---- the service -------------------------------------------------------------------------------------------------------


@dataclass
class Service:
    """A running ``distilcal serve``."""

    process: subprocess.Popen[str]
    port: int
    start_seconds: float  # from the start of the process to the first answer
    start_cpu: float  # seconds of processor time of the service until then: what it takes on an idle machine, or less

    def memory(self) -> int:
        """The resident memory, in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the service has ended")

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has taken."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # a name may hold spaces
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def start(model: str, port: int, limit: int) -> Service:
    """Start a service and wait for its first answer."""
    command = [sys.executable, "-m", "distilcal", "serve", model, "--port", str(port), "--max-requests", str(limit)]
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, text=True)
    while time.perf_counter() - begun < START_SECONDS:
        if process.poll() is not None:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        if is_answered(port):
            seconds = time.perf_counter() - begun
            return Service(process, port, seconds, cpu_seconds(process.pid))
        time.sleep(0.005)
    process.kill()
    raise SystemExit(f"no answer in {START_SECONDS:g} seconds: {' '.join(command)}")


def is_answered(port: int) -> bool:
    body = json.dumps({"texts": ["a fine film"]}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"the service answers {error.code}: {error.read().decode()}; give a model that reads texts") from None
    except OSError:  # it does not listen yet
        return False


# ---- the clients -------------------------------------------------------------------------------------------------------


def requests(port: int, count: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        text = " ".join(rng.choice(WORDS, size=rng.integers(5, 41)))
        body = json.dumps({"texts": [text]}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        made.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> tuple[int, dict[str, str]]:
    """Send a request and read the whole answer; return its status and headers."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers


async def client(load: Load, port: int, made: list[bytes], number: int, until: float) -> None:
    """Send one request after the other; connect anew after an error and where the service closes the connection."""
    writer, turn = None, number
    while time.perf_counter() < until:
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            begun = time.perf_counter()
            status, headers = await exchange(reader, writer, made[turn % len(made)])
        except (OSError, asyncio.IncompleteReadError) as error:
            load.statuses[type(error).__name__] += 1
            writer = close(writer)
            await asyncio.sleep(0.1)
            continue
        turn += 1
        load.statuses[str(status)] += 1
        if status == 200:
            load.latencies.append(time.perf_counter() - begun)
        elif status == 503:
            load.without_retry_after += "retry-after" not in headers
            await asyncio.sleep(float(headers.get("retry-after", 0.1)))
        if headers.get("connection") == "close":
            writer = close(writer)
    close(writer)


def close(writer: asyncio.StreamWriter | None) -> None:
    if writer is not None:
        writer.close()


async def measure_memory(load: Load, service: Service, seconds: float) -> None:
    await asyncio.sleep(min(EARLY_SECONDS, seconds / 3))
    load.early_memory = service.memory()


async def put_under_load(service: Service, clients: int, limit: int, seconds: float) -> Load:
    load, made = Load(clients, limit), requests(service.port, 500)
    begun = time.perf_counter()
    tasks = [client(load, service.port, made, number, begun + seconds) for number in range(clients)]
    await asyncio.gather(*tasks, measure_memory(load, service, seconds))
    load.seconds = time.perf_counter() - begun
    load.late_memory = service.memory()
    return load


# ---- results -----------------------------------------------------------------------------------------------------------


def judge(below: Load, above: Load, starts: dict[str, list[tuple[float, float]]]) -> list[Judgement]:
    facts = below.summary()
    first, *_ = starts
    growth = below.late_memory / below.early_memory
    judgements = [
        Judgement(f"no error of {below.clients} clients below the limit of {below.limit}", set(below.statuses) == {"200"}),
        Judgement(f"p99 / median {facts['p99_over_median']} ≤ {TARGET_RATIO:g}", facts["p99_over_median"] <= TARGET_RATIO),
        Judgement(f"memory at the end / early {growth:.3f} ≤ {TARGET_GROWTH:g}", growth <= TARGET_GROWTH),
        Judgement(
            f"{above.clients} clients above the limit of {above.limit}: 200 or 503 with Retry-After, and nothing else",
            set(above.statuses) == {"200", "503"} and not above.without_retry_after,
        ),
    ]
    seconds = float(np.median([start for start, _ in starts[first]]))
    judgements.append(
        Judgement(f"{first}: first answer {seconds:.2f} s after kill -9 ≤ {TARGET_START:g} s", seconds <= TARGET_START)
    )
    return judgements


def show(loads: list[Load], starts: dict[str, list[tuple[float, float]]], judgements: list[Judgement]) -> None:
    print("| clients | limit | answers a second | statuses | median | p99 | p99 / median | memory early | at the end |")
    print("|---|---|---|---|---|---|---|---|---|")
    for load in loads:
        facts = load.summary()
        counts = ", ".join(f"{name}: {count:,}" for name, count in sorted(load.statuses.items()))
        print(
            f"| {load.clients} | {load.limit} | {facts['answers_per_second']:,} | {counts} | {facts['median_ms']} ms | "
            f"{facts['p99_ms']} ms | {facts['p99_over_median']} | {facts['early_mb']} MB | {facts['late_mb']} MB |"
        )
    for model, seconds in starts.items():
        shown = ", ".join(f"{elapsed:.2f} s ({cpu:.2f} s of the processor)" for elapsed, cpu in seconds)
        print(f"\n{Path(model).name}: first answer after {shown}")
    print()
    for judgement in judgements:
        print(f"{'met' if judgement.met else 'MISSED':7}{judgement.requirement}")


def build_models(folder: Path) -> list[str]:
    """Write the models that are served by default; in a process of its own, which uses one thread."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, check=True, env={**os.environ, "PYTHONPATH": paths})
    return [str(folder / name) for name in ("minilm-int8.onnx", "minilm")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="an .onnx or a folder; the first is put under load, all are started anew")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the first part; the second takes a quarter of it")
    parser.add_argument("--starts", type=int, default=3, help="how often each model is killed and started")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a requirement is missed")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(settings, settings.models or build_models(Path(folder)))


def measure(settings: argparse.Namespace, models: list[str]) -> None:
    port, loads = free_port(), []
    low = max(1, settings.clients // 4)
    for limit, seconds in ((max(LIMIT, settings.clients), settings.seconds), (low, settings.seconds / 4)):
        service = start(models[0], port, limit)
        try:
            loads.append(asyncio.run(put_under_load(service, settings.clients, limit, seconds)))
        finally:
            service.kill()
    starts: dict[str, list[tuple[float, float]]] = {}
    for model in models:
        starts[model] = []
        for _ in range(settings.starts):
            service = start(model, port, LIMIT)  # on the port of the one that was killed
            service.kill()
            starts[model].append((service.start_seconds, service.start_cpu))
    judgements = judge(*loads, starts)
    show(loads, starts, judgements)
    if settings.json is not None:
        facts = {"loads": [load.summary() for load in loads], "starts": starts, "judgements": list(map(asdict, judgements))}
        settings.json.write_text(json.dumps(facts, indent=2) + "\n")
    sys.exit(int(settings.strict and not all(judgement.met for judgement in judgements)))


if __name__ == "__main__":
    main()
