//! What a cut link does to those who use it, and a full disk.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use highwater_testbed::{Disk, Network, Place, is_inside, run_test_inside};
use rustix::thread::move_into_link_name_space;

/// Far more than anything takes.
const LIMIT: Duration = Duration::from_secs(20);

/// Does it on a thread that lives at this host. Sockets stay at the host where they were made.
fn at<T: Send>(place: Place, what: impl FnOnce() -> std::io::Result<T> + Send) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            if place != Place::HERE {
                let namespace = File::open(Network::namespace(place))?;
                move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), None)?;
            }
            what()
        });
        Ok(made.join().map_err(|_| anyhow::anyhow!("the thread failed"))??)
    })
}

/// Sends a word from each host to each other one, and gives the ways that it went.
fn reached(sockets: &[(Place, UdpSocket)]) -> anyhow::Result<Vec<(u8, u8)>> {
    let mut reached = Vec::new();
    for (from, sender) in sockets {
        for (to, receiver) in sockets.iter().filter(|(to, _)| to != from) {
            sender.send_to(&[from.0], receiver.local_addr()?).context("a cut is not to be told to the sender")?;
            let mut word = [0];
            match receiver.recv_from(&mut word) {
                Ok((_, whence)) => {
                    ensure!(whence == sender.local_addr()? && word == [from.0], "a word of somebody else");
                    reached.push((from.0, to.0));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(reached)
}

/// All ways between these hosts but those.
fn all_but(missing: &[(u8, u8)]) -> Vec<(u8, u8)> {
    let all = (0..=3).flat_map(|from| (0..=3).map(move |to| (from, to)));
    all.filter(|way| way.0 != way.1 && !missing.contains(way)).collect()
}

#[test]
fn words_go_where_no_link_is_cut() {
    let tried = run_test_inside("words_go_where_no_link_is_cut", || {
        let mut network = Network::start(3)?;
        let sockets = network.places().iter().map(|&place| {
            let socket = at(place, || UdpSocket::bind((place.address(), 7)))?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            Ok((place, socket))
        });
        let sockets: Vec<_> = sockets.collect::<anyhow::Result<_>>()?;
        let [one, two, three] = [Place(1), Place(2), Place(3)];
        assert_eq!(reached(&sockets)?, all_but(&[]));
        network.cut_one_way(one, two)?;
        assert_eq!(reached(&sockets)?, all_but(&[(1, 2)]), "one way");
        network.cut_between(one, two)?;
        assert_eq!(reached(&sockets)?, all_but(&[(1, 2), (2, 1)]), "between two");
        network.mend()?;
        assert_eq!(reached(&sockets)?, all_but(&[]));
        network.cut_off(three)?;
        let gone = [(3, 0), (3, 1), (3, 2), (0, 3), (1, 3), (2, 3)];
        assert_eq!(reached(&sockets)?, all_but(&gone), "one from everybody");
        assert_eq!(network.cut().count(), gone.len());
        network.mend()?;
        network.cut_one_way(Place::HERE, two)?;
        assert_eq!(reached(&sockets)?, all_but(&[(0, 2)]), "from here");
        network.mend()?;
        assert_eq!(reached(&sockets)?, all_but(&[]));
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn a_connection_stalls_while_it_is_cut_and_goes_on_when_it_is_mended() {
    let tried = run_test_inside("a_connection_stalls_while_it_is_cut_and_goes_on_when_it_is_mended", || {
        let mut network = Network::start(2)?;
        let listener = at(Place(1), || TcpListener::bind((Place(1).address(), 7)))?;
        let address = SocketAddr::new(Place(1).address(), 7);
        let mut near = at(Place(2), || TcpStream::connect(address))?;
        let (mut far, _) = listener.accept()?;
        network.cut_one_way(Place(2), Place(1))?;
        near.write_all(b"word")?;
        far.set_read_timeout(Some(Duration::from_millis(500)))?;
        let mut word = [0; 4];
        let stalled = far.read(&mut word).map_err(|error| error.kind());
        assert_eq!(stalled, Err(ErrorKind::WouldBlock), "neither data nor an end");
        network.mend()?;
        far.set_read_timeout(Some(LIMIT))?;
        far.read_exact(&mut word)?;
        assert_eq!(&word, b"word");
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn a_program_runs_where_it_is_put() {
    let tried = run_test_inside("a_program_runs_where_it_is_put", || {
        let _network = Network::start(1)?;
        for (place, device) in [(Place::HERE, "wire"), (Place(1), "eth0")] {
            let mut command = Network::command(place, "ip");
            let output = command.args(["-brief", "address"]).output()?;
            let said = String::from_utf8(output.stdout)?;
            let line = said.lines().find(|line| line.starts_with(device)).context(said.clone())?;
            ensure!(line.contains(&place.address().to_string()), "{place:?}: {said}");
        }
        let started = Instant::now();
        let mut sleeper = Network::command(Place(1), "sleep").arg("60").spawn()?;
        sleeper.kill()?;
        sleeper.wait()?;
        ensure!(started.elapsed() < LIMIT, "the child was the program itself");
        Ok(())
    });
    tried.unwrap();
}

#[test]
fn a_disk_is_full_until_room_is_given_back() {
    let tried = run_test_inside("a_disk_is_full_until_room_is_given_back", || {
        let directory = tempfile::tempdir()?;
        let root = directory.path().join("disk");
        let disk = Disk::start(&root, 4 << 20)?;
        let mut log = File::create(disk.data().join("log"))?;
        log.write_all(b"before")?;
        let taken = disk.fill()?;
        ensure!((3 << 20..4 << 20).contains(&taken), "{taken} bytes of 4 MiB were free");
        let full = log.write_all(&[0; 8192]).map_err(|error| error.kind());
        assert_eq!(full, Err(ErrorKind::StorageFull));
        disk.free()?;
        disk.free().context("twice is not too often")?;
        log.write_all(&[1; 8192])?;
        let kept = directory.path().join("kept");
        disk.keep(&kept)?;
        drop(log);
        drop(disk);
        ensure!(fs::read_dir(&root)?.next().is_none(), "the disk is still there");
        ensure!(fs::metadata(kept.join("log"))?.len() > 8192, "not all was kept");
        Ok(())
    });
    tried.unwrap();
}

/// On the machine itself its own devices and mounts would be changed.
#[test]
fn a_variable_alone_is_not_believed() {
    assert!(!is_inside(), "and if this is the other process: although the variable names another namespace");
    if std::env::var_os("HIGHWATER_TESTBED_OUTSIDE").is_none() {
        let mut other = Command::new(std::env::current_exe().unwrap());
        other.args(["--exact", "a_variable_alone_is_not_believed"]).env("HIGHWATER_TESTBED_OUTSIDE", "net:[1]");
        let output = other.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
