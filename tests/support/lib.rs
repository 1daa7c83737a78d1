//! Support for the tests of the whole: the real binary as a child process.
