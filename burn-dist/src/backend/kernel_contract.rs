//! What every backend's kernels are tested for.
