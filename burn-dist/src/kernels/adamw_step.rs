//! [`AdamWStep`]: one step of AdamW on one element after the other.

use super::vectors::{VectorLoop, vectorised, vectorised_loop};
use super::{KernelFloat, WideFloat};

/// One step of AdamW over flat arrays: parameter, gradient and two moments are read once and written once.
///
/// With `g` the gradient times `gradient_scale`:
/// `m = b1 m + (1 - b1) g`, `v = b2 v + (1 - b2) g^2`,
/// `p = p (1 - lr decay) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon)`,
/// each operation rounded on its own and in the order of Burn's `AdamW`, so that in 32 and 64 bits the
/// results have its bits. 16-bit arrays are computed in 32 bits and rounded once, where Burn rounds after each
/// operation. (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2.)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWStep {
    /// lr: learning rate.
    pub lr: f64,
    /// b1: what stays of the first moment.
    pub beta_1: f32,
    /// b2: what stays of the second moment.
    pub beta_2: f32,
    /// epsilon: keeps the divisor from 0.
    pub epsilon: f32,
    /// decay of parameters, apart from the gradient.
    pub weight_decay: f32,
    /// t: which step this is, from 1.
    pub time: usize,
    /// What gradients are multiplied by first: 1, a clip coefficient, the inverse of a loss scale.
    pub gradient_scale: f64,
}

/// The numbers of a step as a kernel takes them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWScalars<W> {
    /// `gradient_scale`
    pub scale: W,
    /// `b1`
    pub keep_1: W,
    /// `1 - b1`
    pub take_1: W,
    /// `b2`
    pub keep_2: W,
    /// `1 - b2`
    pub take_2: W,
    /// `1 - b1^t`
    pub bias_1: W,
    /// `1 - b2^t`
    pub bias_2: W,
    /// `epsilon`
    pub epsilon: W,
    /// `1 - lr decay`
    pub keep: W,
    /// `lr`
    pub lr: W,
}

impl AdamWStep {
    /// The numbers as Burn makes them: those of betas in 32 bits, the decay in 64.
    pub fn scalars<W: WideFloat>(&self) -> AdamWScalars<W> {
        let time = self.time as i32;
        let of = |value: f32| W::from_f64(f64::from(value));
        AdamWScalars {
            scale: W::from_f64(self.gradient_scale),
            keep_1: of(self.beta_1),
            take_1: of(1.0 - self.beta_1),
            keep_2: of(self.beta_2),
            take_2: of(1.0 - self.beta_2),
            bias_1: of(1.0 - self.beta_1.powi(time)),
            bias_2: of(1.0 - self.beta_2.powi(time)),
            epsilon: of(self.epsilon),
            keep: W::from_f64(1.0 - self.lr * f64::from(self.weight_decay)),
            lr: W::from_f64(self.lr),
        }
    }

    /// Steps `parameters`, with the moments. Gradients may have another type: they are widened as they are read.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn run<E: KernelFloat, G: KernelFloat>(
        &self,
        parameters: &mut [E],
        gradients: &[G],
        moments_1: &mut [E],
        moments_2: &mut [E],
    ) {
        let others = [gradients.len(), moments_1.len(), moments_2.len()];
        assert_eq!(others, [parameters.len(); 3], "arrays of one length");
        let scalars = self.scalars::<E::Wide>();
        vectorised(|| {
            let arrays = parameters.iter_mut().zip(gradients);
            for ((p, g), (m, v)) in arrays.zip(moments_1.iter_mut().zip(moments_2)) {
                *p = element(&scalars, *p, *g, m, v);
            }
        });
    }

    /// As [`run`](Self::run); the stepped parameters go to `stepped`, which is empty and has room.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn run_into<E: KernelFloat, G: KernelFloat>(
        &self,
        parameters: &[E],
        gradients: &[G],
        moments_1: &mut [E],
        moments_2: &mut [E],
        stepped: &mut Vec<E>,
    ) {
        let others = [gradients.len(), moments_1.len(), moments_2.len()];
        assert_eq!(others, [parameters.len(); 3], "arrays of one length");
        let scalars = self.scalars::<E::Wide>();
        vectorised(|| {
            let arrays = parameters.iter().zip(gradients);
            let arrays = arrays.zip(moments_1.iter_mut().zip(moments_2));
            stepped.extend(arrays.map(|((p, g), (m, v))| element(&scalars, *p, *g, m, v)));
        });
    }

    /// As [`run`](Self::run), of master weights: each is also rounded to `copies`, which the model computes
    /// with.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn run_with_copies<E: KernelFloat, G: KernelFloat, C: KernelFloat>(
        &self,
        masters: &mut [E],
        gradients: &[G],
        moments_1: &mut [E],
        moments_2: &mut [E],
        copies: &mut [C],
    ) {
        let others = [
            gradients.len(),
            moments_1.len(),
            moments_2.len(),
            copies.len(),
        ];
        assert_eq!(others, [masters.len(); 4], "arrays of one length");
        let scalars = self.scalars::<E::Wide>();
        // One block after the other, so that what a type converts by arrays finds its numbers in the cache.
        let mut wide = [C::Wide::from_f64(0.0); BLOCK];
        let mut rest = (moments_1, moments_2, copies);
        for (p, g) in masters.chunks_mut(BLOCK).zip(gradients.chunks(BLOCK)) {
            let (m, moments_1) = rest.0.split_at_mut(p.len());
            let (v, moments_2) = rest.1.split_at_mut(p.len());
            let (c, copies) = rest.2.split_at_mut(p.len());
            let wide = &mut wide[..p.len()];
            let moments = (&mut *m, &mut *v);
            vectorised_loop(Masters::<E, G, C::Wide> {
                scalars,
                parameters: p,
                gradients: g,
                moments,
                copies: wide,
            });
            C::narrow_all(wide, c);
            rest = (moments_1, moments_2, copies);
        }
    }
}

struct Masters<'a, E: KernelFloat, G, W> {
    scalars: AdamWScalars<E::Wide>,
    parameters: &'a mut [E],
    gradients: &'a [G],
    moments: (&'a mut [E], &'a mut [E]),
    copies: &'a mut [W],
}

impl<E: KernelFloat, G: KernelFloat, W: WideFloat> VectorLoop for Masters<'_, E, G, W> {
    type Output = ();

    #[inline(always)]
    fn run<const FUSED: bool>(self) {
        let (m, v) = self.moments;
        let arrays = self
            .parameters
            .iter_mut()
            .zip(self.gradients)
            .zip(self.copies);
        for (((p, g), wide), (m, v)) in arrays.zip(m.iter_mut().zip(v)) {
            *p = element(&self.scalars, *p, *g, m, v);
            *wide = W::from_f64(p.widen().to_f64());
        }
    }
}

/// Elements between two conversions.
const BLOCK: usize = 1024;

#[inline(always)]
fn element<E: KernelFloat, G: KernelFloat>(
    s: &AdamWScalars<E::Wide>,
    p: E,
    g: G,
    m: &mut E,
    v: &mut E,
) -> E {
    let g = E::Wide::from_f64(g.widen().to_f64()) * s.scale;
    let m_new = m.widen() * s.keep_1 + g * s.take_1;
    let v_new = v.widen() * s.keep_2 + (g * g) * s.take_2;
    (*m, *v) = (E::narrow(m_new), E::narrow(v_new));
    let delta = (m_new / s.bias_1) / ((v_new / s.bias_2).sqrt() + s.epsilon);
    E::narrow(p.widen() * s.keep - delta * s.lr)
}
