//! [`BatchSplit`]: which rank sees which batches.

/// How the batches of a data loader are divided among ranks. Either way every item is seen once in an
/// epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchSplit {
    /// Rank `r` of `n` takes batches `r`, `r + n`, ... of the order in which one device would see them.
    ///
    /// Ranks that are threads share one loader, of any kind. Ranks that are processes have one each, and
    /// these must give the same batches in the same order: the same seed, and at most one worker (Burn's
    /// loader of several workers gives batches as they come). A process passes over the batches of others
    /// with `Iterator::nth`: Burn's loaders make them and throw them away, a
    /// [`SkippingLoader`](crate::data::SkippingLoader) does not read them at all.
    Batches,
    /// Each rank reads an equal, contiguous part of the dataset, shuffled within itself: any loader, and
    /// nobody reads what others read, but not the order of one device.
    Slices,
}
