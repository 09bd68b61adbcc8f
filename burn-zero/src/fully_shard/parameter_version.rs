//! [`ParameterVersion`]: the values of all parameters between two steps.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use burn::tensor::{DType, Tensor};
use burn_dist::backend::{
    self, DeviceArray, FlatArray, FlatMemory, FlatWork, LeafId, ParameterSource, Pass, UnitMemory,
};
use burn_dist::communicator::Operation;
use burn_dist::{DistError, Result};

use super::gather_order::Visit;
use super::gradient_shards::gradient_pieces;
use super::graph_ties::{GraphTies, Marks};
use super::shard_context::ShardContext;

/// How a version came from the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Map,
    Valid,
    Train,
    Fork,
    Device,
}

/// This rank's pieces of all parameters, as one state of a model holds them, and what is gathered of
/// them.
///
/// A parameter sees only itself, but a unit is gathered in one call: the parameters of a model have this
/// in common. A mapper, such as an optimizer, maps one after the other; the first makes the next version,
/// the others join it. Clones of a model keep the version that they were made of.
#[derive(Debug)]
pub(crate) struct ParameterVersion {
    pub(crate) context: Arc<ShardContext>,
    slots: Mutex<Vec<Slot>>,
    next: Mutex<Option<Next>>,
    window: Mutex<Window>,
    /// Held by the model.
    ties: Mutex<Weak<GraphTies>>,
}

#[derive(Debug, Clone)]
struct Slot {
    /// Its values, untracked.
    piece: Option<Tensor<1>>,
    leaf: Option<LeafId>,
    /// The last parameter that showed it has moved on to another version.
    moved: bool,
    /// Held by each parameter that shows this piece.
    holders: Arc<()>,
}

#[derive(Debug)]
struct Next {
    version: Weak<ParameterVersion>,
    change: Change,
    /// Places in the model that have joined.
    joined: Vec<bool>,
}

/// What is gathered now.
#[derive(Default)]
struct Window {
    gathered: BTreeMap<usize, Arc<UnitMemory>>,
    /// The unit that the forward pass is in.
    active: Option<usize>,
    /// On its way.
    ahead: Option<(usize, FlatWork)>,
    before: Option<Visit>,
    last: Option<Visit>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("gathered", &self.gathered.keys())
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("invariant: no panic under this lock")
}

impl ParameterVersion {
    /// Without values yet.
    pub(crate) fn new(context: Arc<ShardContext>) -> Arc<Self> {
        let slot = || Slot {
            piece: None,
            leaf: None,
            moved: false,
            holders: Arc::new(()),
        };
        let slots = context.plan.parameters.iter().map(|_| slot()).collect();
        Self::with_slots(context, slots)
    }

    fn with_slots(context: Arc<ShardContext>, slots: Vec<Slot>) -> Arc<Self> {
        Arc::new(Self {
            context,
            slots: Mutex::new(slots),
            next: Mutex::default(),
            window: Mutex::default(),
            ties: Mutex::default(),
        })
    }

    /// The version that the parameter at `place` of the model joins when it changes.
    pub(crate) fn succeed(&self, place: usize, change: Change) -> Arc<Self> {
        let mut next = lock(&self.next);
        if let Some(known) = &mut *next
            && known.change == change
            && known.joined.get(place) != Some(&true)
            && let Some(version) = known.version.upgrade()
        {
            mark(&mut known.joined, place);
            return version;
        }
        let slots = lock(&self.slots)
            .iter()
            .map(|slot| Slot {
                piece: slot.piece.clone(),
                leaf: slot.leaf,
                moved: false,
                holders: Arc::new(()),
            })
            .collect();
        let version = Self::with_slots(self.context.clone(), slots);
        let mut joined = Vec::new();
        mark(&mut joined, place);
        *next = Some(Next {
            version: Arc::downgrade(&version),
            change,
            joined,
        });
        version
    }

    /// What the parameters of this version have in common in autodiff graphs.
    pub(crate) fn ties(&self, marks: &Arc<Marks>) -> Arc<GraphTies> {
        let mut ties = lock(&self.ties);
        ties.upgrade().unwrap_or_else(|| {
            let new = Arc::new(GraphTies::new(marks.clone()));
            *ties = Arc::downgrade(&new);
            new
        })
    }

    /// What the parameters that show this piece hold.
    pub(crate) fn holder(&self, parameter: usize) -> Arc<()> {
        lock(&self.slots)[parameter].holders.clone()
    }

    /// Lets go of a piece, so that its memory can serve the next value.
    pub(crate) fn forget(&self, parameter: usize) {
        lock(&self.slots)[parameter].piece = None;
    }

    /// Lets go of a piece if the caller is the last that shows it, and tells whether it was.
    pub(crate) fn forget_last(&self, parameter: usize) -> bool {
        let mut slots = lock(&self.slots);
        let slot = &mut slots[parameter];
        // The slot and the caller.
        let is_last = Arc::strong_count(&slot.holders) == 2;
        if is_last {
            slot.piece = None;
            slot.moved = true;
        }
        is_last
    }

    pub(crate) fn put(&self, parameter: usize, piece: &Tensor<1>) {
        let leaf = backend::leaf_of(piece);
        let mut slots = lock(&self.slots);
        slots[parameter].leaf = leaf;
        slots[parameter].piece = Some(piece.clone().without_autodiff());
        drop(slots);
        // What was gathered with another value, when a part of the model had been mapped before.
        self.reshard();
    }

    /// The piece as it is now; one that moved on to the next version is found there.
    fn piece(&self, parameter: usize) -> Option<Tensor<1>> {
        if let Some(piece) = &lock(&self.slots)[parameter].piece {
            return Some(piece.clone());
        }
        let next = lock(&self.next).as_ref()?.version.upgrade()?;
        next.piece(parameter)
    }

    /// Lets go of everything that is gathered.
    pub(crate) fn reshard(&self) {
        *lock(&self.window) = Window::default();
        self.end_shared_uses();
    }

    /// The forward pass has left the unit, or the backward pass is done with it.
    fn end_shared_uses(&self) {
        if let Some(ties) = lock(&self.ties).upgrade() {
            ties.end_shared_uses();
        }
    }

    fn is_training(&self) -> bool {
        lock(&self.slots).iter().any(|slot| slot.leaf.is_some())
    }

    fn start_gather(&self, (pass, unit): Visit) -> Result<FlatWork> {
        let context = &self.context;
        let dtype = self.dtype(unit);
        let group = &context.groups.shard;
        let pieces = context.plan.layout.pieces(unit, group.index()).into_iter();
        let pieces: Vec<_> = pieces
            .map(|piece| {
                let number = context.plan.units[unit].parameters[piece.parameter];
                let values = self.piece(number).ok_or_else(|| self.moved_on(number))?;
                Ok((piece.place, values))
            })
            .collect::<Result<_>>()?;
        let part = context.plan.layout.part_len(unit);
        let own = FlatMemory::of(group, &context.device).join(dtype, part, pieces)?;
        let pass = match (pass, self.is_training()) {
            (Pass::Forward, true) => "a forward pass",
            (Pass::Forward, false) => "an evaluation",
            (Pass::Backward, _) => "the backward pass",
        };
        let label = format!(
            "{} in {pass} after {} backward passes",
            context.plan.units[unit].name,
            context.passes()
        );
        context.count_gather(unit);
        Ok(own.start(Operation::AllGather, group, Some(&label)))
    }

    fn dtype(&self, unit: usize) -> DType {
        let first = self.context.plan.units[unit].parameters[0];
        self.context.plan.parameters[first].param
    }

    /// Makes a unit whole, and starts the one that came next the last time.
    fn fetch(&self, unit: usize, pass: Pass) -> Result<Arc<UnitMemory>> {
        let context = &self.context;
        let mut window = lock(&self.window);
        let training = self.is_training();
        if pass == Pass::Forward && window.active != Some(unit) {
            let left = window.active.replace(unit);
            if let Some(left) = left.filter(|_| context.reshard_after_forward || !training) {
                window.gathered.remove(&left);
            }
            self.end_shared_uses();
        }
        if let Some(memory) = window.gathered.get(&unit) {
            return Ok(memory.clone());
        }
        let visit = (pass, unit);
        let work = match window.ahead.take() {
            Some((foretold, work)) if foretold == unit => work,
            _ => self.start_gather(visit)?,
        };
        let memory = Arc::new(UnitMemory::new(work.wait()?));
        window.gathered.insert(unit, memory.clone());
        let mut order = context.order(training);
        if let Some(last) = window.last {
            order.note(window.before, last, visit);
        }
        window.before = window.last.replace(visit);
        let foretold = order.after(window.before, visit);
        drop(order);
        if let Some(next) =
            foretold.filter(|next| context.prefetch && !window.gathered.contains_key(&next.1))
        {
            window.ahead = Some((next.1, self.start_gather(next)?));
        }
        Ok(memory)
    }

    fn moved_on(&self, parameter: usize) -> DistError {
        DistError::config(
            format!(
                "rank {}: a pass needs values of {} that a step or a mapper has replaced",
                self.context.groups.shard.rank(),
                self.context.plan.parameters[parameter].name
            ),
            "run the backward pass before the step, or keep a clone of the model until then; change the whole model at once, not a part of it",
        )
    }

    fn fail(&self, failure: DistError) -> DistError {
        self.context.sums().give_up(&self.context, failure.clone());
        failure
    }
}

fn mark(joined: &mut Vec<bool>, place: usize) {
    if joined.len() <= place {
        joined.resize(place + 1, false);
    }
    joined[place] = true;
}

impl ParameterSource for ParameterVersion {
    fn whole(&self, parameter: usize, pass: Pass) -> Result<(Arc<UnitMemory>, Range<usize>)> {
        let managed = &self.context.plan.parameters[parameter];
        let unit = match lock(&self.slots)[parameter].moved {
            true => Err(self.moved_on(parameter)),
            false => Ok(()),
        };
        let unit = unit.and_then(|()| self.fetch(managed.unit, pass));
        let unit = unit.map_err(|failure| self.fail(failure))?;
        Ok((unit, managed.place.clone()))
    }

    fn gradient(&self, parameter: usize, gradient: DeviceArray) {
        let leaf = lock(&self.slots)[parameter].leaf;
        let mut sums = self.context.sums();
        if let Err(failure) = sums.add(&self.context, parameter, leaf, gradient) {
            sums.give_up(&self.context, failure);
        }
    }

    fn end_unit(&self, unit: usize) {
        let mut window = lock(&self.window);
        window.gathered.remove(&unit);
        if window.active == Some(unit) {
            window.active = None;
            self.end_shared_uses();
        }
        drop(window);
        let mut sums = self.context.sums();
        if let Err(failure) = sums.end_unit(&self.context, unit) {
            sums.give_up(&self.context, failure);
        }
    }

    fn end_pass(&self) -> Vec<(LeafId, FlatArray)> {
        let context = &self.context;
        let mut sums = context.sums();
        let ended = match sums.end_pass(context) {
            Ok(ended) => ended,
            Err(failure) => {
                sums.give_up(context, failure);
                None
            }
        };
        drop(sums);
        self.reshard();
        let Some(means) = ended else {
            return Vec::new();
        };
        context.count_pass();
        let leaf = |number: usize| means.leaves[number].or_else(|| lock(&self.slots)[number].leaf);
        let pieces = gradient_pieces(context, &means).into_iter();
        pieces
            .filter_map(|(number, piece)| Some((leaf(number)?, piece)))
            .collect()
    }
}
