"""Time of the calls of an endpoint that takes 50 ms for each: 200 documents, 32 calls under way.

    python -m benchmarks.endpoints

The server runs in a process of its own. Without any overhead the time is 0.35 s.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time

from acclimate.data.writers import open_writer
from tests.servers import serve

DOCUMENTS, CONCURRENCY, SECONDS = 200, 32, 0.05


def run_server(connection) -> None:
    with serve(seconds=SECONDS) as server:
        connection.send(server.url)
        connection.recv()
        connection.send(server.peak)


def main() -> None:
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=run_server, args=(there,), daemon=True).start()
    url = here.recv()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACCLIMATE_CACHE"] = folder
        list(open_writer(url, model="m").write(["warm up"]))
        for what in ("asked", "from the cache"):
            writer = open_writer(url, model="m", concurrency=CONCURRENCY)
            start, cpu = time.perf_counter(), time.process_time()
            list(writer.write(f"document {number}" for number in range(DOCUMENTS)))
            took, spent = time.perf_counter() - start, time.process_time() - cpu
            print(f"{DOCUMENTS} answers, {what}: {took:.2f} s, of which {spent:.2f} s of CPU")
    here.send(None)
    print(f"most calls at once: {here.recv()}")


if __name__ == "__main__":
    main()
