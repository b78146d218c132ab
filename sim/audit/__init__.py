"""Audits: attacks on what the nodes of a scenario release, and tests of the mechanism of their privacy budgets.

Theory of operation
-------------------

Why attacks. A privacy budget is a claim about all attackers, and follows from a proof and from code. An attack shows what
a budget is worth in practice, and refutes a claim whose code is wrong. Without a budget, it shows what members can infer
today. No attack confirms a claim: what these attacks do not find, better ones may.

The attacker. It is a member that keeps to the protocol and records all that it may fetch: every model that its neighbours
publish or submit, in every round, before a lossy codec. It knows the code, the scenario with all options, the topology, the
numbers of samples, and the model with which the federation starts. It does not know the seed, from which a simulation draws
the noise and the batches, nor the data, except what an attack grants:

- Inversion (inversion): nothing more. It looks at the first round, because every member knows its start.
- Membership (membership): the samples of which it asks, and other samples of the same kind, with which it runs the scenario
  itself. It looks at the released models of the node, in some rounds.
- Canaries (canaries): all samples but for whether each canary is there, and the start of each training. In the first round
  everybody knows it; later, the neighbours of a node that has merged know it together. This is the attacker of the proof.
- Tests of the mechanism (mechanism): not an attack. They run the learner on samples of their own, without noise where they
  need to, and need no assumption on the attacker.

A run is observed, not changed: Watch (releases) hears of each published model and of each training. An attack that needs
other data has the scenario run again, with the samples of the nodes replaced and everything else equal. All nodes are
attacked, a node by its own releases; a member can attack those that it may fetch from.

What is reported. For each row of the scenario: the test metric, the bytes, the promised epsilon; the epsilon that guesses
refute; AUC and true-positive rates of membership with intervals; the share of images found by inversion, and the share
that is found by chance; and what the tests of the mechanism contradict. `audit.json` has all figures, `audit.html` a
table, drawings and pictures.

What must never be:

- A control that differs from what it controls: members and strangers are judged by the same code, and canaries that are
  there and those that are not get equal scores if the mechanism is perfect.
- A bound without its error: each epsilon that guesses refute holds with 95 % confidence, all attempts together.
- An attack that reads what its attacker cannot see: attacks receive releases, not nodes.

How mechanisms take part. Noise that nodes add to what they publish needs nothing. With secure sums the coordinator and the
members see the mean over the members, and single models are not attacked. Tests of the mechanism compare the noise with
`PrivacyPlan.mechanism`: a mechanism that adds noise beyond it passes, one whose own part is smaller must say so there.

Modules: releases (observed runs, the model as an attacker computes with it), inversion, membership, canaries, mechanism,
statistics (areas, intervals, bounds), audit (one row, the work on disk, audit.json), page (table and audit.html).
"""
