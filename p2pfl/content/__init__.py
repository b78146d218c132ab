"""Content of the inputs of a computation: digests of files, folders and objects.

Results that are kept for later are compared by the content of what they were computed from, never by names or times.
"""
