//! More clients than descriptors.

use crate::bystander::Bystander;
use crate::harness::Client;
use crate::running::{
    expect_unharmed, raise_own_descriptors, reactor, start_within, stranger, total, until,
};
use std::io::Read;

#[test]
fn two_thousand_clients_are_served_where_the_soft_limit_is_1024() {
    raise_own_descriptors(2200);
    let mut server = start_within("-Sn 1024");
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    let mut clients: Vec<Client> = (0..2000).map(|_| stranger(&server)).collect();
    bystander.round();
    clients.iter_mut().for_each(Client::expect_served);
    let status = until(&mut server, |_| true);
    assert_eq!(reactor(&status, "connections"), 2001);
    assert_eq!(total(&status, "turned_away_descriptors"), 0, "the soft limit was raised");
    drop(clients);
    expect_unharmed(server, bystander);
}

#[test]
fn without_descriptors_newcomers_are_closed_and_others_served() {
    raise_own_descriptors(1000);
    let mut server = start_within("-n 256");
    let mut bystander = Bystander::join(server.request, 1);
    bystander.round();
    let mut clients = Vec::new();
    let mut turned_away = 0;
    while turned_away < 50 {
        assert!(clients.len() < 256, "there are no more descriptors than that");
        let mut client = Client::connect(server.request);
        // The greeting comes at once, or the end does.
        match client.stream.read(&mut [0; 64]) {
            Ok(1..) => clients.push(client),
            Ok(0) | Err(_) => turned_away += 1,
        }
        bystander.client.expect_served();
    }
    bystander.round();
    // With a few descriptors free, newcomers and operators are let in again.
    clients.truncate(clients.len() - 20);
    let status = until(&mut server, |status| total(status, "turned_away_descriptors") >= 50);
    assert!(reactor(&status, "connections") > 200, "the limit is 256");
    stranger(&server).expect_served();
    drop(clients);
    expect_unharmed(server, bystander);
}
