//! Layers drawn in parts have the values of dense ones drawn whole from the same seed.
