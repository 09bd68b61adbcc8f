//! Steps of optimizers on Flex's tensors.

use burn::backend::flex::FlexTensor;
use burn::tensor::DType;
use half::{bf16, f16};

use super::flex_arrays::{Stored, blank, from_values, owned, values, without_gaps};
use crate::kernels::{AdamWStep, SgdStep, new_array};

pub(super) fn adamw<E: Stored, G: Stored>(
    tensors: [FlexTensor; 4],
    step: &AdamWStep,
) -> (FlexTensor, FlexTensor, FlexTensor) {
    let [mut parameter, gradient, moment_1, moment_2] = tensors.map(without_gaps);
    let (mut moment_1, mut moment_2) = (owned::<E>(moment_1), owned::<E>(moment_2));
    let (m, v) = (moment_1.storage_mut(), moment_2.storage_mut());
    let len = parameter.layout().num_elements();
    let is_whole = parameter.storage::<E>().len() == len;
    if is_whole && let Some(parameters) = parameter.try_storage_mut::<E>() {
        step.run(parameters, values::<G>(&gradient), m, v);
        return (parameter, moment_1, moment_2);
    }
    let mut stepped = new_array(len);
    step.run_into(
        values::<E>(&parameter),
        values::<G>(&gradient),
        m,
        v,
        &mut stepped,
    );
    (from_values(stepped, &parameter), moment_1, moment_2)
}

/// Parameter, moments and copy.
pub(super) type WithCopy = (FlexTensor, FlexTensor, FlexTensor, FlexTensor);

pub(super) fn adamw_copies<E: Stored, G: Stored, C: Stored>(
    tensors: [FlexTensor; 4],
    step: &AdamWStep,
    copy: DType,
) -> WithCopy {
    let [parameter, gradient, moment_1, moment_2] = tensors;
    let [mut parameter, mut moment_1, mut moment_2] =
        [parameter, moment_1, moment_2].map(owned::<E>);
    let gradient = without_gaps(gradient);
    let mut copies = blank::<C>(parameter.layout().num_elements(), copy);
    step.run_with_copies(
        parameter.storage_mut::<E>(),
        values::<G>(&gradient),
        moment_1.storage_mut(),
        moment_2.storage_mut(),
        copies.storage_mut::<C>(),
    );
    let copies = copies.reshape(parameter.layout().shape().clone());
    (parameter, moment_1, moment_2, copies)
}

pub(super) fn adamw_bf16_copies<E: Stored, G: Stored>(
    tensors: [FlexTensor; 4],
    step: &AdamWStep,
) -> WithCopy {
    adamw_copies::<E, G, bf16>(tensors, step, DType::BF16)
}

pub(super) fn adamw_f16_copies<E: Stored, G: Stored>(
    tensors: [FlexTensor; 4],
    step: &AdamWStep,
) -> WithCopy {
    adamw_copies::<E, G, f16>(tensors, step, DType::F16)
}

pub(super) fn sgd<E: Stored>(tensors: [FlexTensor; 3], step: &SgdStep) -> (FlexTensor, FlexTensor) {
    let [parameter, gradient, velocity] = tensors;
    let [mut parameter, mut velocity] = [parameter, velocity].map(owned::<E>);
    let gradient = without_gaps(gradient);
    step.run(
        parameter.storage_mut::<E>(),
        values(&gradient),
        velocity.storage_mut(),
    );
    (parameter, velocity)
}
