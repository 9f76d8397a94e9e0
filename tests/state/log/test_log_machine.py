from __future__ import annotations

from hypothesis import settings

from tests.suites.log_machine import LogMachine

LIMITS = settings(max_examples=100, stateful_step_count=30, deadline=None)


class Lz4Log(LogMachine):
    codec = "lz4"
    block_bytes = 256


class ZstdLog(LogMachine):
    codec = "zstd"
    block_bytes = 256


TestPlainLog = LogMachine.TestCase
TestPlainLog.settings = LIMITS
TestLz4Log = Lz4Log.TestCase
TestLz4Log.settings = LIMITS
TestZstdLog = ZstdLog.TestCase
TestZstdLog.settings = LIMITS
