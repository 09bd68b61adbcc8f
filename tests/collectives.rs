//! One contract, run against every communicator.
