//! Dropout on whole and on split activations.
