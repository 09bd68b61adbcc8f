//! Parameters that take no memory.
//!
//! A `Learner` takes a model in as a record only, and shapes must be the same. So the record has zeros that were
//! asked of the system and never touched: they take no memory. In host memory, where a tensor keeps a record's
//! bytes.

use burn::module::{ModuleVisitor, Param};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, DType, Device, Tensor};
use burn::train::{Learner, LearnerModel};
use burn_pack::Writer;

/// Puts such zeros in place of the learner's trained parameters.
pub(super) fn put<M: LearnerModel>(learner: &mut Learner<M>) {
    learner.fork(&Device::flex().autodiff());
    let model = learner.model();
    let mut shapes = Shapes::default();
    model.visit(&mut shapes);
    let record = untouched(shapes.tensors).map(|record| record.allow_partial(true));
    // A record that does not fit would end in a panic; then the values stay.
    if let Some(record) = record
        && model.try_load_record(record.clone()).is_ok()
    {
        learner.load_model(record);
    }
}

/// A record's bytes whose data nobody wrote.
fn untouched(tensors: Vec<burn_pack::Tensor>) -> Option<ModuleRecord> {
    let writer = Writer::new(tensors);
    let mut bytes = vec![0u8; writer.size().ok()?];
    // The head is written; then the first tensor says that it has no data.
    writer
        .write_into(&mut bytes)
        .expect_err("invariant: no tensor has data");
    // `from_bytes_vec` might move it.
    ModuleRecord::from_bytes(Bytes::from_elems(bytes)).ok()
}

/// Paths and shapes of the trained parameters, as records have them.
#[derive(Default)]
struct Shapes {
    path: Vec<String>,
    tensors: Vec<burn_pack::Tensor>,
}

impl ModuleVisitor for Shapes {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_initialized() {
            return;
        }
        let saved = param.transform_for_save().val();
        if !saved.is_require_grad() {
            return;
        }
        let (shape, dtype): (_, DType) = (saved.shape(), saved.dtype());
        let bytes = shape.num_elements() * dtype.size();
        let nothing = || Err(burn_pack::Error::IoError("no data".into()));
        let path = self.path.join(".");
        let id = Some(param.id.val());
        let tensor = burn_pack::Tensor::deferred(path, dtype, shape, id, bytes, nothing);
        self.tensors.push(tensor);
    }
}
