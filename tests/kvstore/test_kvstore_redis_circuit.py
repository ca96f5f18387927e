"""The circuit breaker."""

import logging
import os
import threading

import pytest
from redis_servers import wait_until

from epic_rag.kvstore import redis_circuit
from epic_rag.kvstore.errors import StoreUnavailableError
from epic_rag.kvstore.redis_circuit import Circuit
from epic_rag.kvstore.testing import in_threads


class Probe:
    def __init__(self) -> None:
        self.well = threading.Event()
        self.asked = 0

    def __call__(self) -> None:
        self.asked += 1
        if not self.well.is_set():
            raise OSError("still away")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    monkeypatch.setattr(redis_circuit, "PAUSE_SECONDS", 0.01)
    return Probe()


def test_one_failure_opens_it_and_a_probe_closes_it(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    circuit = Circuit("the server", probe)
    for turn in range(3):
        circuit.check()
        probe.well.clear()
        error = circuit.open(TimeoutError("no answer"))
        assert str(error).startswith("the server cannot be used (TimeoutError: no answer)")
        assert circuit.is_open
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="no answer"):
                circuit.check()
        before = probe.asked
        wait_until(lambda before=before: probe.asked > before + 2, "some probes")  # type: ignore[misc]
        assert circuit.is_open
        probe.well.set()
        wait_until(lambda: not circuit.is_open, "the circuit")
        assert circuit.times_opened == turn + 1
    wait_until(lambda: len(caplog.records) == 6, "the last message: it comes after the circuit has closed")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    circuit.stop()


def probing_threads() -> int:
    return [thread.name for thread in threading.enumerate()].count("epic-rag-redis-probe")


def test_many_failures_at_once_are_said_once(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: probing_threads() == 0, "the probes of earlier tests to end")
    circuit = Circuit("the server", probe)
    in_threads(8, lambda index: circuit.open(OSError(str(index))) and None)
    assert circuit.times_opened == 1
    assert len(caplog.records) == 1
    assert probing_threads() == 1
    circuit.stop()
    wait_until(lambda: probing_threads() == 0, "the probe to end")
    assert circuit.is_open


def test_a_forked_child_probes_for_itself(probe: Probe) -> None:
    circuit = Circuit("the server", probe)
    circuit.open(OSError("away"))
    probe.well.set()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if circuit.is_open:
                try:
                    circuit.check()
                except StoreUnavailableError:
                    wait_until(lambda: not circuit.is_open, "the circuit")
            os.write(write, b"closed")
        finally:
            os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 10) == b"closed"
    os.close(read)
    wait_until(lambda: not circuit.is_open, "the circuit")
