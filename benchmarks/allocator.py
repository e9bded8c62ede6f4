"""How glibc keeps memory in processes whose memory is measured."""

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(128 * 2**10)}
"""Environment in which blocks of so many bytes are the system's again once they are freed.

It is glibc's own bound, kept where it is at first. Otherwise glibc raises it to the largest block that was freed, and
keeps smaller ones in holes between others, which grow for many minutes and hide what leaks.
"""
