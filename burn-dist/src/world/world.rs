//! [`World`]: all ranks, seen from one of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::environment::is_loopback;
use super::flight_signal::{self, FlightSignal};
use super::nccl_start::{self, Nccl};
use super::peers::Peers;
use super::{Environment, Launcher, StoreClient, StoreServer, WorldOptions};
use crate::communicator::{
    Communicator, CommunicatorOptions, InProcessHub, Members, ProcessCommunicator,
};
#[cfg(feature = "mpi")]
use crate::communicator::{MpiCommunicator, MpiRuntime};
use crate::error::{DistError, Result};
use crate::flight::FlightRecorder;
use crate::group::ProcessGroup;
use crate::mesh::{DeviceMesh, MeshAxis};

/// All ranks of a job, seen from one of them; makes process groups. Cheap to clone.
///
/// ```
/// use burn_dist::{World, communicator::ReduceOp};
///
/// # fn main() -> burn_dist::Result<()> {
/// let world = World::from_env()?; // one rank, unless a launcher says otherwise
/// let group = world.whole()?;
/// let sum = group.all_reduce_values(vec![world.rank() as u32], ReduceOp::Sum)?;
/// println!("rank {} of {}: {sum:?}", world.rank(), world.world_size());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct World(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_size: usize,
    options: WorldOptions,
    fabric: Fabric,
    nccl: Option<Nccl>,
    recorder: Option<FlightRecorder>,
    /// Writes the recording when somebody asks; a launch of threads has one for all.
    _signal: Option<FlightSignal>,
    /// How often each group was made, by key: a group made again is another group.
    generations: Mutex<HashMap<String, usize>>,
}

/// How ranks are connected.
#[derive(Debug)]
enum Fabric {
    Threads(InProcessHub),
    Processes(Peers),
    #[cfg(feature = "mpi")]
    Mpi(MpiRuntime),
}

/// How long a store outlives a start that failed.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

fn parent_process() -> u32 {
    std::os::unix::process::parent_id()
}

impl World {
    /// The world that the launcher's variables describe: torchrun's (and `burnrun`'s), Slurm's, Open
    /// MPI's; one rank without any. Rank 0 serves the store, unless the launcher does. Waits until all
    /// ranks are here.
    ///
    /// # Errors
    /// [`DistError::Environment`] with everything that is missing or contradicts itself,
    /// [`DistError::AddressInUse`], [`DistError::Rendezvous`] naming the ranks that did not come;
    /// [`DistError::Config`] for each of what NCCL needs and is not there, if the options ask for NCCL.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(WorldOptions::default())
    }

    /// As [`from_env`](Self::from_env); `BURN_DIST_STARTUP_TIMEOUT` and `BURN_DIST_STEP_TIMEOUT`
    /// win over the options.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_env_with(options: WorldOptions) -> Result<Self> {
        let environment = Environment::read(&|name| std::env::var(name).ok())?;
        Self::from_environment(&environment, options)
    }

    /// Whether a launcher's variables are there.
    pub fn is_launched() -> bool {
        let environment = Environment::read(&|name| std::env::var(name).ok());
        // Variables that contradict each other are a launcher's too.
        !environment.is_ok_and(|environment| environment.launcher == Launcher::Plain)
    }

    /// The world of an environment.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn from_environment(environment: &Environment, mut options: WorldOptions) -> Result<Self> {
        if let Some(timeout) = environment.startup_timeout {
            options.startup_timeout = timeout;
        }
        if let Some(timeout) = environment.step_timeout {
            options.step_timeout = timeout;
        }
        // First: a rank without it must not keep the others waiting.
        let library = environment.nccl_library.as_deref();
        let nccl = nccl_start::start(&options, library, 0, environment.local_size)?;
        let fabric = match environment.world_size {
            1 => Fabric::Threads(InProcessHub::new()),
            #[cfg(feature = "mpi")]
            _ if environment.launcher == Launcher::OpenMpi && options.mpi => {
                Self::start_mpi(environment)?
            }
            _ => Self::join(environment, &options)?,
        };
        let recorder = (options.flight_recorder && environment.world_size > 1).then(|| {
            let folder = environment.flight_folder.clone();
            let folder = folder.unwrap_or_else(|| flight_signal::folder(parent_process()));
            FlightRecorder::new(environment.rank, environment.world_size, Some(folder))
        });
        let signal = FlightSignal::listen(recorder.clone().into_iter().collect())?;
        Ok(Self(Arc::new(Inner {
            rank: environment.rank,
            world_size: environment.world_size,
            local_rank: environment.local_rank,
            local_size: environment.local_size,
            options,
            fabric,
            nccl,
            recorder,
            _signal: signal,
            generations: Mutex::default(),
        })))
    }

    /// MPI's own numbers must be those of the launcher's variables.
    #[cfg(feature = "mpi")]
    fn start_mpi(environment: &Environment) -> Result<Fabric> {
        let runtime = MpiRuntime::start()?;
        let found = (runtime.rank(), runtime.size());
        let told = (environment.rank, environment.world_size);
        match found == told {
            true => Ok(Fabric::Mpi(runtime)),
            false => Err(DistError::config(
                format!(
                    "MPI says rank {} of {}, but the variables say rank {} of {}",
                    found.0, found.1, told.0, told.1
                ),
                "build with the MPI whose mpirun starts the program, or set `mpi: false`",
            )),
        }
    }

    fn join(environment: &Environment, options: &WorldOptions) -> Result<Fabric> {
        let (rank, host, port) = (
            environment.rank,
            environment.master_addr.as_str(),
            environment.master_port,
        );
        let secret = environment.secret.as_str();
        let serves = rank == 0 && !environment.store_is_external;
        let server = match serves {
            true => Some(StoreServer::bind(host, port, secret)?),
            false => None,
        };
        let store = StoreClient::connect(rank, host, port, secret, options.startup_timeout)?;
        let local = store
            .local_address()
            .map_err(|error| DistError::Rendezvous {
                rank,
                address: format!("{host}:{port}"),
                problem: error.to_string(),
                hint: "the connection to the store broke; read the output of rank 0".into(),
            })?;
        // Nothing listens beyond this machine when the world meets on it.
        debug_assert!(!is_loopback(host) || local.ip().is_loopback());
        // A rank that is started twice would wait for ever under the wrong number.
        if store.add(&format!("rank/{rank}"), 1)? > 1 {
            return Err(DistError::Rendezvous {
                rank,
                address: format!("{host}:{port}"),
                problem: format!("rank {rank} is there already"),
                hint: "two jobs share this address, or two processes this rank; take another --master-port"
                    .into(),
            });
        }
        let (size, timeout) = (environment.world_size, options.startup_timeout);
        let met = Peers::meet(rank, size, local.ip(), secret, &store, timeout);
        drop(store);
        if let Some(server) = server {
            // Ranks that have met hang up; those that miss one are about to say so themselves.
            server.finish(if met.is_ok() { timeout } else { LAST_ANSWERS });
        }
        Ok(Fabric::Processes(met?))
    }

    /// One rank.
    pub fn solo() -> Self {
        let hub = InProcessHub::new();
        Self::thread(0, 1, WorldOptions::default(), hub, None, None)
    }

    /// A rank that is a thread of this process.
    pub(super) fn thread(
        rank: usize,
        world_size: usize,
        options: WorldOptions,
        hub: InProcessHub,
        nccl: Option<Nccl>,
        recorder: Option<FlightRecorder>,
    ) -> Self {
        Self(Arc::new(Inner {
            rank,
            world_size,
            local_rank: rank,
            local_size: world_size,
            options,
            fabric: Fabric::Threads(hub),
            nccl,
            recorder,
            _signal: None,
            generations: Mutex::default(),
        }))
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.0.world_size
    }

    /// This rank's position on its host.
    pub fn local_rank(&self) -> usize {
        self.0.local_rank
    }

    /// Number of ranks on this host.
    pub fn local_size(&self) -> usize {
        self.0.local_size
    }

    /// Timeouts and algorithm.
    pub fn options(&self) -> &WorldOptions {
        &self.0.options
    }

    /// What noted this rank's last calls; `None` for one rank, or if the options say so.
    pub fn flight_recorder(&self) -> Option<&FlightRecorder> {
        self.0.recorder.as_ref()
    }

    /// A new group of these global ranks, in this order. All its members call this, in the same
    /// order among the groups that they share; a group of the same name and ranks is independent of
    /// the one before.
    ///
    /// # Errors
    /// [`DistError::Config`] if a rank stands twice, is outside the world, or if this rank is not a
    /// member, over NCCL also if members share a device or have different versions;
    /// [`DistError::Rendezvous`] naming the members that did not come in time.
    pub fn group(&self, name: &str, ranks: &[usize]) -> Result<ProcessGroup> {
        self.group_with(name, ranks, self.0.options.communicator())
    }

    /// As [`group`](Self::group), with options of its own, the same on all members.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn group_with(
        &self,
        name: &str,
        ranks: &[usize],
        options: CommunicatorOptions,
    ) -> Result<ProcessGroup> {
        let inner = &*self.0;
        if let Some(outside) = ranks.iter().find(|&&rank| rank >= inner.world_size) {
            return Err(DistError::config(
                format!(
                    "group {name} names rank {outside}, but the world has {} ranks",
                    inner.world_size
                ),
                "ranks count from 0",
            ));
        }
        let members = Members::new(name, ranks, inner.rank)?;
        let communicator = self.connect(members, options)?;
        let communicator = nccl_start::beside(inner.nccl.as_ref(), communicator, options)?;
        Ok(ProcessGroup::new(communicator))
    }

    /// A communicator of these members, for host memory.
    fn connect(
        &self,
        members: Members,
        options: CommunicatorOptions,
    ) -> Result<Arc<dyn Communicator>> {
        let inner = &*self.0;
        let recorder = inner.recorder.clone();
        let communicator: Arc<dyn Communicator> = match &inner.fabric {
            Fabric::Threads(hub) => Arc::new(hub.connect(&members, options, recorder)),
            Fabric::Processes(peers) => {
                let key = self.next_key(members.name(), members.ranks());
                let streams = peers.connect_group(&members, &key, options.startup_timeout)?;
                Arc::new(ProcessCommunicator::new(
                    members, streams, options, recorder,
                )?)
            }
            #[cfg(feature = "mpi")]
            Fabric::Mpi(runtime) => {
                let key = self.next_key(members.name(), members.ranks());
                Arc::new(MpiCommunicator::new(
                    runtime, members, &key, options, recorder,
                )?)
            }
        };
        Ok(communicator)
    }

    fn next_key(&self, name: &str, ranks: &[usize]) -> String {
        let key = format!("{name} {ranks:?}");
        let mut generations = self
            .0
            .generations
            .lock()
            .expect("invariant: no panic under this lock");
        let generation = generations.entry(key.clone()).or_default();
        *generation += 1;
        format!("{key} {generation}")
    }

    /// A new group of all ranks. Collective.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    pub fn whole(&self) -> Result<ProcessGroup> {
        let ranks: Vec<usize> = (0..self.world_size()).collect();
        self.group("world", &ranks)
    }

    /// A new group of the ranks that differ from this one on these axes only.
    ///
    /// # Errors
    /// [`DistError::Config`] if the mesh is of another size or the axes do not go together; else as
    /// [`group`](Self::group).
    pub fn axis_group(&self, mesh: &DeviceMesh, axes: &[MeshAxis]) -> Result<ProcessGroup> {
        let ranks = self.axis_ranks(mesh, axes)?;
        self.group(&DeviceMesh::group_name(axes), &ranks)
    }

    /// As [`axis_group`](Self::axis_group), for programs in which all ranks of `whole`, a group of all ranks, call this
    /// at once: over NCCL the group then comes out of `whole`'s, without another rendezvous.
    ///
    /// # Errors
    /// As [`axis_group`](Self::axis_group), and as [`DeviceCommunicator::split`](crate::communicator::DeviceCommunicator::split).
    pub fn axis_group_within(
        &self,
        whole: &ProcessGroup,
        mesh: &DeviceMesh,
        axes: &[MeshAxis],
    ) -> Result<ProcessGroup> {
        let Some(device) = whole.communicator().device() else {
            return self.axis_group(mesh, axes);
        };
        let ranks = self.axis_ranks(mesh, axes)?;
        let members = Members::new(DeviceMesh::group_name(axes), &ranks, self.rank())?;
        let options = self.0.options.communicator();
        let host = self.connect(members, options)?;
        Ok(ProcessGroup::new(device.split(host, options)?))
    }

    fn axis_ranks(&self, mesh: &DeviceMesh, axes: &[MeshAxis]) -> Result<Vec<usize>> {
        if mesh.world_size() != self.world_size() {
            return Err(DistError::config(
                format!(
                    "the mesh has {} ranks, but the world has {}",
                    mesh.world_size(),
                    self.world_size()
                ),
                "make the mesh for this world",
            ));
        }
        mesh.ranks(axes, self.rank())
    }
}
