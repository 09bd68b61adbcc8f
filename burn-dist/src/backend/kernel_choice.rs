//! [`KernelChoice`]: one pass, or the chain of operations that it replaces.

/// How a function of one pass over its arrays is carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// By the backend's kernel, where it has one for these types.
    #[default]
    Fused,
    /// As a chain of tensor operations: the twin that kernels are compared with.
    Twin,
}
