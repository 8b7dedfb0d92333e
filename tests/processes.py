"""Programs started in several processes, as accelerate launch does it, and the time of processes that ended."""

import os
import resource
import subprocess
import sys


def launch(arguments, processes, timeout=1200):
    """On a machine without GPUs accelerate launch starts several processes only if told of GPUs, and told not to use them."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(processes), "--num_machines", "1"]
    command += [
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--num_cpu_threads_per_process",
        "1",
        "--main_process_port",
        "0",
    ]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment |= {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command += ["--multi_gpu"] if processes > 1 else ["--cpu"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=environment)


def children_seconds():
    """Processor time of all processes that this one has waited for: unlike a clock, it does not count what others do."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
