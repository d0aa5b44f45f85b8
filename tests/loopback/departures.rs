//! Clients leave in every state, and nothing of them stays (F55, P4).

use crate::harness::{Client, NIL, NOOP, PING, Server, message, opening};
use kvtide_core::names::InstanceId;
use kvtide_core::rng::Rng;
use kvtide_core::wire::client::{Key, append_request};
use kvtide_core::wire::fields::Opaque;
use kvtide_core::wire::request::{EngineDrivenRegistration, KeyFrame, Request};
use std::net::SocketAddr;
use std::time::Duration;

/// Everything that an engine-driven client says, with bodies of several sizes.
fn conversation(instance: i64) -> Vec<u8> {
    let tokens: Vec<u32> = (0..64).map(|token| token + instance as u32).collect();
    let request = format!("request-{instance}");
    let mut frame = Vec::new();
    let key = Key {
        model: "m",
        world_size: 1,
        worker: Some(0),
        tokens: &tokens,
        start: 0,
        end: 64,
        request: &request,
        salt: "",
        readers: 1,
    };
    key.encode(&mut frame);
    let (key, instance) = (KeyFrame(&frame), InstanceId(instance));
    let body = vec![0x80; 100_000];
    let registration = EngineDrivenRegistration {
        instance_id: instance.0,
        model_name: "m",
        world_size: 1,
        block_size: 16,
        num_layers: 2,
        hidden_dim_size: 32,
        dtype_str: "float16",
        use_mla: false,
        num_physical_slots: None,
    };
    let requests = [
        Request::Noop,
        Request::RegisterEngineDriven(registration),
        Request::Lookup { key, tp_size: 1 },
        Request::QueryPrefetchStatus { request: &request },
        Request::PrepareStore { key, instance },
        Request::CommitStore { key, instance, data: Opaque(&body) },
        Request::WaitPrefetchStatus { request: "nobody", wait: Duration::from_secs(300) },
        Request::PrepareRetrieve { key, instance },
        Request::CommitRetrieve { key, instance },
        Request::EndSession { request: &request },
        Request::CommitStore { key, instance, data: Opaque(&body[..7]) },
        Request::Ping { instance: Some(instance) },
    ];
    let mut bytes = opening();
    for (uid, request) in requests.iter().enumerate() {
        append_request(uid as u64, request, &mut bytes);
    }
    bytes
}

fn leave_after(address: SocketAddr, bytes: &[u8]) {
    Client::connect(address).write(bytes);
}

#[test]
fn f55_a_thousand_clients_leave_at_random_points() {
    let server = Server::start();
    let mut bystander = Client::open(server.address);
    let mut rng = Rng::new(55);
    for number in 0..1000 {
        let bytes = conversation(number);
        let most = if rng.below(2) == 0 { bytes.len() } else { 3000 };
        leave_after(server.address, &bytes[..rng.below(most as u64 + 1) as usize]);
        if number % 100 == 0 {
            bystander.expect_served();
        }
    }
    bystander.expect_served();
    drop(bystander);
    Client::open(server.address).expect_served();
    server.expect_empty();
    assert_eq!(server.status().counters.accepted, 1002);
}

#[test]
fn f55_a_client_may_leave_after_any_byte_of_its_handshake_and_first_request() {
    let server = Server::start();
    let bytes = [opening(), message(&[b"\x01", PING, NIL])].concat();
    for cut in 0..=bytes.len() {
        leave_after(server.address, &bytes[..cut]);
    }
    Client::open(server.address).expect_served();
    server.expect_empty();
}

#[test]
fn a_client_that_leaves_without_its_answers_is_only_dropped_itself() {
    let server = Server::start();
    for _ in 0..50 {
        let mut client = Client::open(server.address);
        client.send(&[b"\x01", NOOP]);
    }
    Client::open(server.address).expect_served();
    server.expect_empty();
}
