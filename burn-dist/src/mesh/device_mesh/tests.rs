use super::*;
use proptest::prelude::*;

use MeshAxis::{Cp, DpReplicate, DpShard, Ep, Pp, Tp};

fn mesh(world: usize, order: &str, dims: ParallelDims) -> DeviceMesh {
    let order = order.parse().expect("an order");
    DeviceMesh::with_order(dims, world, order).expect("a mesh")
}

const MEGATRON: &str = "tp-cp-ep-dp-pp";

#[test]
fn sixteen_ranks_tp2_dp2_pp4() {
    let mesh = mesh(
        16,
        MEGATRON,
        ParallelDims {
            tp: 2,
            dp_shard: 2,
            pp: 4,
            ..Default::default()
        },
    );
    let dp = [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [8, 10],
        [9, 11],
        [12, 14],
        [13, 15],
    ];
    assert_eq!(mesh.groups(&[DpShard]).expect("groups"), dp);
    let pp = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]];
    assert_eq!(mesh.groups(&[Pp]).expect("groups"), pp);
}

#[test]
fn eight_ranks_in_two_orders() {
    let dims = ParallelDims {
        tp: 2,
        dp_replicate: 2,
        pp: 2,
        ..Default::default()
    };
    let early = mesh(8, "tp-pp-dp", dims);
    let dp = [[0, 4], [1, 5], [2, 6], [3, 7]];
    assert_eq!(early.groups(&[DpReplicate]).expect("groups"), dp);
    let late = mesh(8, MEGATRON, dims);
    let dp = [[0, 2], [1, 3], [4, 6], [5, 7]];
    assert_eq!(late.groups(&[DpReplicate]).expect("groups"), dp);
    let pp = [[0, 4], [1, 5], [2, 6], [3, 7]];
    assert_eq!(late.groups(&[Pp]).expect("groups"), pp);
}

#[test]
fn sixteen_ranks_with_context() {
    let mesh = mesh(
        16,
        MEGATRON,
        ParallelDims {
            tp: 2,
            cp: 2,
            dp_shard: 2,
            pp: 2,
            ..Default::default()
        },
    );
    let groups = |axes: &[MeshAxis]| mesh.groups(axes).expect("groups");
    let cp = [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [8, 10],
        [9, 11],
        [12, 14],
        [13, 15],
    ];
    assert_eq!(groups(&[Cp]), cp);
    let dp = [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
        [8, 12],
        [9, 13],
        [10, 14],
        [11, 15],
    ];
    assert_eq!(groups(&[DpShard]), dp);
    let dp_cp = [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]];
    assert_eq!(groups(&[DpShard, Cp]), dp_cp);
    let pp: Vec<Vec<usize>> = (0..8).map(|r| vec![r, r + 8]).collect();
    assert_eq!(groups(&[Pp]), pp);
}

#[test]
fn experts_are_a_second_view_of_the_same_stages() {
    let dims = ParallelDims {
        tp: 2,
        cp: 2,
        dp_shard: 2,
        pp: 2,
        ep: 4,
        ..Default::default()
    };
    let mesh = mesh(16, MEGATRON, dims);
    let ep = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]];
    assert_eq!(mesh.groups(&[Ep]).expect("groups"), ep);
    let mut edp: Vec<Vec<usize>> = (0..16)
        .map(|rank| mesh.expert_data_parallel_ranks(rank).expect("a group"))
        .collect();
    edp.sort();
    edp.dedup();
    let expected = [
        [0, 4],
        [1, 5],
        [2, 6],
        [3, 7],
        [8, 12],
        [9, 13],
        [10, 14],
        [11, 15],
    ];
    assert_eq!(edp, expected);
    let error = DeviceMesh::with_order(dims, 16, "tp-pp-dp".parse().expect("an order"));
    assert!(error.expect_err("refused").to_string().contains("pp last"));
    let error = mesh.ranks(&[Ep, Tp], 0).expect_err("they overlap");
    assert!(error.to_string().contains("second view"), "{error}");
}

#[test]
fn a_mesh_prints_as_a_table() {
    let mesh = mesh(
        4,
        MEGATRON,
        ParallelDims {
            tp: 2,
            dp_replicate: 2,
            ..Default::default()
        },
    );
    let table = "4 ranks, order tp-cp-ep-dp-pp\n\
                 rank  dp_replicate  tp\n   0             0   0\n   1             0   1\n   \
                 2             1   0\n   3             1   1";
    assert_eq!(mesh.to_string(), table);
}

fn any_mesh() -> impl Strategy<Value = DeviceMesh> {
    let degree = || 1usize..4;
    let order = prop::sample::select(vec![
        MEGATRON,
        "tp-pp-dp",
        "dp-tp-pp",
        "pp-dp_replicate-cp-dp_shard-tp",
    ]);
    (degree(), degree(), degree(), degree(), degree(), order).prop_map(
        |(pp, dp_replicate, dp_shard, cp, tp, order)| {
            let dims = ParallelDims {
                pp,
                dp_replicate,
                dp_shard,
                cp,
                tp,
                ..Default::default()
            };
            mesh(pp * dp_replicate * dp_shard * cp * tp, order, dims)
        },
    )
}

proptest! {
    #[test]
    fn groups_of_any_axes_partition_the_world(
        mesh in any_mesh(),
        axes in prop::sample::subsequence(vec![Pp, DpReplicate, DpShard, Cp, Tp], 0..=5),
    ) {
        let groups = mesh.groups(&axes).expect("groups");
        let mut all: Vec<usize> = groups.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..mesh.world_size()).collect::<Vec<_>>());
        let size: usize = axes.iter().map(|&axis| mesh.dims().degree(axis)).product();
        for group in &groups {
            prop_assert_eq!(group.len(), size);
            for &rank in group {
                prop_assert_eq!(&mesh.ranks(&axes, rank).expect("a group"), group);
                for axis in [Pp, DpReplicate, DpShard, Cp, Tp] {
                    if !axes.contains(&axis) {
                        let first = mesh.coordinate(axis, group[0]);
                        prop_assert_eq!(mesh.coordinate(axis, rank), first);
                    }
                }
            }
        }
    }

    #[test]
    fn a_coordinate_names_one_rank(mesh in any_mesh()) {
        let axes = [Pp, DpReplicate, DpShard, Cp, Tp];
        let mut seen: Vec<Vec<usize>> = (0..mesh.world_size())
            .map(|rank| axes.iter().map(|&axis| mesh.coordinate(axis, rank)).collect())
            .collect();
        seen.sort();
        seen.dedup();
        prop_assert_eq!(seen.len(), mesh.world_size());
    }

    #[test]
    fn dense_and_expert_views_have_the_same_stages(
        pp in 1usize..4, dp in 1usize..4, cp in 1usize..3, tp in 1usize..4, ep in 1usize..6, etp in 1usize..3,
    ) {
        let dims = ParallelDims { pp, dp_shard: dp, cp, tp, ep, etp, ..Default::default() };
        let world = pp * dp * cp * tp;
        if let Ok(mesh) = DeviceMesh::new(dims, world) {
            for rank in 0..world {
                let stage = mesh.coordinate(Pp, rank);
                for peer in mesh.ranks(&[Ep], rank).expect("a group") {
                    prop_assert_eq!(mesh.coordinate(Pp, peer), stage);
                }
                for peer in mesh.expert_data_parallel_ranks(rank).expect("a group") {
                    prop_assert_eq!(mesh.coordinate(Pp, peer), stage);
                    prop_assert_eq!(mesh.coordinate(Ep, peer), mesh.coordinate(Ep, rank));
                }
            }
        }
    }
}
