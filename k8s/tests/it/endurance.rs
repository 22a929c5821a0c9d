//! Restarts by the hundred, an agent that is killed while it decides, and an API server that is gone for minutes.
//!
//! Where the parts are in this process, the clock is the test's: it goes on when all of them wait.

use crate::programs::{Process, agent, build, daemon};
use crate::world::{CORES, MEMORY, World, container, pod, until};
use gpuslice_k8s::ledger::socket;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Every tenth time a pod comes, and every third time the agent restarts too.
#[tokio::test(start_paused = true)]
async fn a_hundred_restarts_of_the_kubelet_lose_and_double_nothing() {
    let world = World::new(&[16384, 16384]).await;
    let mut plugins = world.here();
    world.registered().await;
    let mut expected = BTreeSet::new();
    for round in 0..100 {
        if round % 10 == 0 {
            let name = format!("p{round}");
            let got = world.run(&pod(&name, &[container("main", 2, 10)])).await.expect("admitted");
            let gpu = &got[0].envs["ALIYUN_COM_GPU_MEM_IDX"];
            expected.insert(format!("uid-{name}-c0 on {gpu} with 2048 and 10"));
        }
        if round % 3 == 0 {
            drop(plugins);
            plugins = world.here();
        }
        world.kubelet.restart().await;
        world.registered().await;
        let told: Vec<String> = world.ledger.told();
        assert_eq!(told.iter().cloned().collect::<BTreeSet<_>>(), expected, "round {round}");
        assert_eq!(told.len(), expected.len(), "round {round}");
    }
    // 20 of 28 GiB are given: the rest can be had, and no more.
    world.run(&pod("rest", &[container("main", 6, 10)])).await.expect("it fits");
    world.run(&pod("more", &[container("main", 7, 10)])).await.expect_err("it does not");
}

/// Pods run on without the API server, and those that end meanwhile are released when it is back.
#[tokio::test(start_paused = true)]
async fn pods_run_on_while_the_server_is_gone_for_ten_minutes() {
    let world = World::new(&[16384, 16384]).await;
    let _plugins = world.here();
    world.registered().await;
    for name in ["ends", "runs"] {
        world.run(&pod(name, &[container("main", 4, 10)])).await.expect("admitted");
    }
    let before = world.ledger.told();
    world.api.refuse("/");
    world.api.compact();
    // Behind the agent's back, since no event reaches it.
    world.end(&pod("ends", &[]), "Succeeded");
    world.api.add_pod(&pod("late", &[container("main", 4, 10)]));
    for minute in 0..10 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(world.ledger.told(), before, "minute {minute}");
        world.kubelet.pre_start("uid-runs", "main").await.expect("a container may start again");
        if minute == 5 {
            world.kubelet.restart().await;
            world.registered().await;
        }
    }
    // A pod that the agent has not seen is refused with a reason, and not guessed.
    let late = pod("late", &[container("main", 4, 10)]);
    let failed = world.kubelet.admit(&late).await.expect_err("refused");
    assert!(failed.message.contains("no pod of this node waits for"), "{failed:?}");
    world.api.refuse("");
    until("the pod that ended is released", || world.ledger.told().len() == 1).await;
    world.kubelet.admit(&late).await.expect("and the other is admitted");
    assert_eq!(world.ledger.told().len(), 2);
}

fn claims(root: &Path) -> Option<Vec<String>> {
    let rows = socket::read(&root.join("run/node.sock")).ok()?;
    let mut all: Vec<String> = rows.claims.iter().map(|row| row.claim.to_string()).collect();
    all.sort();
    Some(all)
}

async fn answers(root: &Path) {
    until("the daemon answers", || claims(root).is_some()).await;
}

/// The daemon is killed a hundred times; claims and their CDI files are those that were reserved, each once.
#[tokio::test]
async fn a_hundred_restarts_of_the_daemon_lose_and_double_nothing() {
    let Some(build) = build("a hundred restarts of the daemon") else {
        return;
    };
    let world = World::new(&[]).await;
    let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("a directory");
    let root = root.path();
    let gpus = "devices=2,mem=16GiB";
    let mut running = daemon(&build, root, gpus);
    let _agent = agent(&world, root);
    world.registered().await;
    let mut expected = Vec::new();
    for round in 0..100 {
        if round % 10 == 0 {
            let name = format!("p{round:02}");
            world.run(&pod(&name, &[container("main", 2, 10)])).await.expect("admitted");
            expected.push(format!("uid-{name}-c0"));
        }
        drop(running);
        running = daemon(&build, root, gpus);
        answers(root).await;
        assert_eq!(claims(root).as_ref(), Some(&expected), "round {round}");
    }
    let files = fs::read_dir(root.join("run/cdi")).map_or(0, |all| all.count());
    assert_eq!(files, expected.len());
    drop(running);
}

/// The agent is killed at a random time while the kubelet admits a pod; its successor gives the pod one claim.
#[tokio::test]
async fn an_agent_that_is_killed_while_it_allocates_leaves_one_claim() {
    let Some(build) = build("an agent that is killed while it allocates") else {
        return;
    };
    let world = World::new(&[]).await;
    let root = tempfile::Builder::new().prefix("gpuslice-k8s-").tempdir().expect("a directory");
    let root = root.path();
    let _daemon = daemon(&build, root, "devices=4,mem=16GiB");
    let mut running: Process = agent(&world, root);
    world.registered().await;
    let mut killed = 0;
    // Twelve, and up to four more, which are killed sooner, until one was killed before it answered.
    let mut rounds = 0;
    while rounds < 12 || killed == 0 && rounds < 16 {
        let round = rounds;
        rounds += 1;
        let one = pod(&format!("p{round:02}"), &[container("main", 4, 20)]);
        world.api.add_pod(&one);
        let (kubelet, admitted) = (world.kubelet.clone(), one.clone());
        let admission = tokio::spawn(async move { kubelet.admit(&admitted).await });
        // An admission takes a few milliseconds.
        let micros = world.kubelet.state().random(if round < 12 { 6_000 } else { 500 }) as u64;
        tokio::time::sleep(Duration::from_micros(micros)).await;
        drop(running);
        let first = admission.await.expect("no panic");
        world.kubelet.until("gone", |it| it.plugins[MEMORY].devices.is_empty()).await;
        running = agent(&world, root);
        world.registered().await;
        until("all devices", || world.kubelet.allocatable(CORES) == 400).await;
        if first.is_err() {
            killed += 1;
            world.kubelet.admit(&one).await.expect("admitted by its successor");
        }
    }
    let all = claims(root).expect("the daemon answers");
    let expected: Vec<String> = (0..rounds).map(|round| format!("uid-p{round:02}-c0")).collect();
    assert_eq!(all, expected, "{killed} of {rounds} were killed before they answered");
    assert!(killed > 0, "no agent was killed in time");
}
