//! Snippets of source files, and a transformer that tells what they are written in.

mod arguments;
mod batcher;
mod data;
mod language;
mod model;
mod snippet;
mod snippet_batch;

pub use arguments::Arguments;
pub use batcher::SnippetBatcher;
pub use data::split;
pub use language::Language;
pub use model::SnippetClassifier;
pub use snippet::Snippet;
pub use snippet_batch::SnippetBatch;
