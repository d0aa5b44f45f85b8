//! Servers and engines of different users on one `/dev/shm`.

use crate::client::{Client, Prompt, SAMPLE, SAMPLE_CHUNKS};
use crate::launch::{
    SMALL, fails, grown, is_root, left_out, pool_name, release, segment, start, started,
};
use crate::launch::{stop, unique};
use kvtide_tests::child;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Users and a group that need no entry anywhere.
const USER: u32 = 64_321;
const OTHER: u32 = 64_322;
const GROUP: u32 = 64_400;
const PATIENCE: Duration = Duration::from_secs(60);

/// A command as another user without any capability. None, and a line, where that is not allowed.
fn as_user(user: u32, group: u32, program: &str) -> Option<Command> {
    if !is_root() {
        left_out("only root can become another user");
        return None;
    }
    let mut command = Command::new("setpriv");
    let (user, group) = (format!("--reuid={user}"), format!("--regid={group}"));
    command.args([&user, &group, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(program);
    Some(command)
}

/// The binary where any user can reach it.
struct Everybodys(PathBuf);

impl Everybodys {
    fn new(test: &str) -> Everybodys {
        let name = format!("kvtide-containers-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::copy(release(), &path).expect("the temporary folder has room");
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, everybody).expect("the copy is ours");
        Everybodys(path)
    }

    fn program(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}

impl Drop for Everybodys {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Whether a process of this user and group can open the segment for writing.
fn can_map(user: u32, group: u32, name: &str) -> bool {
    let mut command = as_user(user, group, "sh").expect("the caller has asked");
    command.args(["-c", "exec 3<>\"$0\"", segment(name).to_str().expect("it is text")]);
    let ended = child::run(&mut command, PATIENCE).unwrap_or_else(|why| panic!("{why}"));
    ended.code == 0
}

fn mode_of(name: &str) -> (u32, u32) {
    let data = fs::metadata(segment(name)).expect("the segment is there");
    (data.mode() & 0o777, data.gid())
}

#[test]
fn a_segment_is_its_own_users_unless_told_otherwise() {
    let server = start(&SMALL);
    let name = pool_name(&server).expect("it is shared");
    assert_eq!(mode_of(&name).0, 0o600);
    if as_user(USER, GROUP, "true").is_some() {
        assert!(!can_map(USER, GROUP, &name));
    }
    stop(server);
}

#[test]
fn a_group_is_let_in_by_mode_and_group() {
    let own = rustix::process::getegid().as_raw();
    let group = if is_root() { GROUP } else { own };
    let number = group.to_string();
    let arguments = ["--shm-mode", "0660", "--shm-group", &number];
    let server = start(&[&SMALL[..], &arguments].concat());
    let name = pool_name(&server).expect("it is shared");
    assert_eq!(mode_of(&name), (0o660, group));
    if as_user(USER, GROUP, "true").is_some() {
        assert!(can_map(USER, GROUP, &name), "an engine of that group");
        assert!(!can_map(USER, USER, &name), "and nobody else");
    }
    stop(server);
}

#[test]
fn a_group_that_the_server_may_not_give_ends_in_3_and_is_named() {
    let copy = Everybodys::new("group");
    let Some(command) = as_user(USER, USER, copy.program()) else { return };
    let arguments = ["--shm-mode", "0660", "--shm-group", "64400"];
    let (code, output) = fails(command, &[&SMALL[..], &arguments].concat());
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("--shm-group"), "{output}");
}

#[test]
fn any_user_without_capabilities_can_serve() {
    let copy = Everybodys::new("serves");
    if as_user(USER, USER, "true").is_none() {
        return;
    }
    let launch = || as_user(USER, USER, copy.program()).expect("asked above");
    let mut server = started(&launch, &[&SMALL[..], &SAMPLE_CHUNKS].concat());
    grown(&mut server);
    let (mut client, name) = Client::registered(server.request, 1, SAMPLE);
    assert_eq!(fs::metadata(segment(&name)).expect("it is there").uid(), USER);
    let prompt = Prompt::new(1, 2, SAMPLE);
    assert_eq!(client.prepare_store(&prompt).map(|slots| slots.len()), Some(2));
    assert!(client.commit_store(&prompt, b""));
    assert_eq!(client.lookup(&prompt), 2);
    drop(client);
    stop(server);
}

/// What another user left behind is that user's to remove, whatever its name and its lock.
#[test]
fn f49_segments_of_another_user_are_left_alone() {
    let copy = Everybodys::new("foreign");
    if as_user(USER, USER, "true").is_none() {
        return;
    }
    let swept = format!("lmcache_l1_pool_kvtide_test_{}", std::process::id());
    let named = unique("foreign");
    for name in [&swept, &named] {
        fs::write(segment(name), b"left behind").expect("root may write");
        std::os::unix::fs::chown(segment(name), Some(OTHER), Some(OTHER)).expect("root may");
    }
    // Of another user, and root itself.
    let server = started(&|| as_user(USER, USER, copy.program()).expect("asked above"), &SMALL);
    stop(server);
    stop(start(&SMALL));
    let arguments = [&SMALL[..], &["--shm-name", &named]].concat();
    for command in
        [as_user(USER, USER, copy.program()).expect("asked above"), Command::new(release())]
    {
        let (code, output) = fails(command, &arguments);
        assert_eq!(code, 3, "{output}");
        assert!(output.contains(&named) && output.contains("somebody else"), "{output}");
    }
    for name in [&swept, &named] {
        fs::remove_file(segment(name)).expect("it is still there");
    }
}
