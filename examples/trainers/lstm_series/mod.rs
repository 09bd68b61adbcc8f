//! A noisy series of waves, and an LSTM that forecasts it.

mod arguments;
mod batcher;
mod data;
mod forecast_error;
mod model;
mod window;
mod window_batch;

pub use arguments::Arguments;
pub use batcher::WindowBatcher;
pub use data::split;
pub use forecast_error::ForecastError;
pub use model::Forecaster;
pub use window::Window;
pub use window_batch::WindowBatch;
