//! Where each parameter's elements are, on which axis of the mesh; no tensors.
//!
//! | file | what |
//! |---|---|
//! | `placement.rs` | whole, a part, or a summand, over one axis |
//! | `axis_placement.rs` | a parameter's and its gradient's placement over one axis |
//! | `layer_placement.rs` | what a layer declares of its parameters; part of the module |
//! | `declarations.rs` | what all layers of a model declared, by path |

mod axis_placement;
mod declarations;
mod layer_placement;
mod placement;

pub use axis_placement::AxisPlacement;
pub use declarations::Declarations;
pub use layer_placement::LayerPlacement;
pub use placement::Placement;
