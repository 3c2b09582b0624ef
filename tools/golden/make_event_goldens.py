#!/usr/bin/env python3
"""Prints the records of tests/train/tensorboard_test.cpp, as TensorBoard's own writer writes them.

    pip install tensorboard && tools/golden/make_event_goldens.py

The time of an event is not compared: it prints the header of each record, and the event after its time.
"""
import glob
import struct
import tempfile

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

with tempfile.TemporaryDirectory() as folder:
    writer = EventFileWriter(folder)
    values = [Summary.Value(tag="loss", simple_value=0.5), Summary.Value(tag="rate", simple_value=1e-3)]
    writer.add_event(Event(wall_time=1.0, step=300, summary=Summary(value=values)))
    writer.add_event(Event(wall_time=1.0, step=8, session_log=SessionLog(status=SessionLog.START)))
    writer.close()
    with open(glob.glob(folder + "/*")[0], "rb") as file:
        records = file.read()
at = 0
while at < len(records):
    size = struct.unpack("<Q", records[at:at + 8])[0]
    print("head ", records[at:at + 12])
    print("event", records[at + 12 + 9:at + 12 + size])
    at += 12 + size + 4
