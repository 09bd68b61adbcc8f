//! Tensor and sequence parallelism: layers whose weights, and activations, are split over a group.
//!
//! Shapes are per rank, `n` is the size of the group; b batch, s sequence, h width, d another width.
//!
//! | layer | in | out | forward | backward |
//! |---|---|---|---|---|
//! | [`ColumnParallelLinear`] | `[.., h]` | `[.., d/n]` | nothing | all_reduce |
//! | [`RowParallelLinear`] | `[.., d/n]` | `[.., h]` | all_reduce | nothing |
//! | [`VocabParallelEmbedding`] | `[b, s]` | `[b, s, h]` | all_reduce | nothing |
//! | with sequence parallelism | | | | |
//! | [`ColumnParallelLinear`] | `[b, s/n, h]` | `[b, s, d/n]` | all_gather | reduce_scatter |
//! | [`RowParallelLinear`] | `[b, s, d/n]` | `[b, s/n, h]` | reduce_scatter | all_gather |
//! | [`VocabParallelEmbedding`] | `[b, s]` | `[b, s/n, h]` | reduce_scatter | all_gather |
//! | [`SequenceParallel`] | `[b, s/n, h]` | `[b, s/n, h]` | nothing | all_reduce of its parameters' gradients |
//!
//! [`ParallelAttention`], [`ParallelFeedForward`], [`GatedFeedForward`], [`ParallelEncoderLayer`] and
//! [`ParallelEncoder`] are made of these, and take the places of Burn's modules. All have `from_dense`,
//! which every rank calls with the same dense layer, and `to_dense`, which is collective.
//!
//! | file | what |
//! |---|---|
//! | `tensor_parallel.rs` | the group and how layers use it |
//! | `vocabulary_part.rs` | which rows of a vocabulary a rank holds; pure |
//! | `layer_activations.rs` | what a layer keeps for its backward pass, by formula; pure |
//! | `gradient_audit.rs`, `audited_parameters.rs`, `audit_report.rs` | whether every gradient is reduced as often as it must be |
//! | `parts.rs` | parameters cut out of whole ones, and put together |
//! | `drawn_parts.rs` | parameters drawn as if whole |

mod audit_report;
mod audited_parameters;
mod column_parallel_linear;
mod drawn_parts;
mod gated_feed_forward;
mod gradient_audit;
mod layer_activations;
mod parallel_attention;
mod parallel_encoder;
mod parallel_encoder_layer;
mod parallel_feed_forward;
mod parts;
mod row_parallel_linear;
mod sequence_parallel;
mod split_dropout;
mod tensor_parallel;
mod vocab_parallel_cross_entropy;
mod vocab_parallel_embedding;
mod vocabulary_part;

pub use audit_report::{AuditReport, AuditedParameter};
pub use column_parallel_linear::{ColumnParallelLinear, ColumnParallelLinearConfig};
pub use gated_feed_forward::{GatedFeedForward, GatedFeedForwardConfig};
pub use gradient_audit::GradientAudit;
pub use layer_activations::{KeptArrays, LayerActivations};
pub use parallel_attention::{AttentionInput, ParallelAttention, ParallelAttentionConfig};
pub use parallel_encoder::ParallelEncoder;
pub use parallel_encoder_layer::ParallelEncoderLayer;
pub use parallel_feed_forward::{ParallelFeedForward, ParallelFeedForwardConfig};
pub use row_parallel_linear::{RowParallelLinear, RowParallelLinearConfig};
pub use sequence_parallel::{SequenceParallel, TokenWise};
pub use split_dropout::SplitDropout;
pub use tensor_parallel::TensorParallel;
pub use vocab_parallel_cross_entropy::{
    CrossEntropyOptions, vocab_parallel_cross_entropy, vocab_parallel_token_losses,
};
pub use vocab_parallel_embedding::{VocabParallelEmbedding, VocabParallelEmbeddingConfig};
pub use vocabulary_part::VocabularyPart;
