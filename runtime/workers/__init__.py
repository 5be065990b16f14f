"""The zmq runtime: one worker process per device. ``docs/runtime.md`` is its picture."""
