"""Chaos: real nodes on virtual time under random faults, with invariants that are checked during the run.

A seed gives a schedule of faults (`schedule`). A run (`run`) puts each node on a machine of its own (`machine`), whose
clock and disk are simulated (`hardware`) and whose links are those of a `network` that obeys the faults, and checks the
`invariants` at every frame, checkpoint and round. Everything else is the code of p2pfl.node: its messages, signatures,
files, elections and membership. Nothing depends on real time or on the order of a set, so that a seed gives the same
frames in every process, and a violation can be shrunk and replayed.

`tests/chaos` runs processes under the same schedules on real machines, networks and disks, and reports the same
violations. It finds less in an hour, but it finds errors of sockets, TLS, the broker and the operating system.
"""
