"""Conduct of peers: proofs that a member has signed two models of one round, penalties, a score of each peer, and the
exclusion of peers with a high score.
"""
