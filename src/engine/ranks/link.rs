//! TCP connections between the first rank and the others: frames of an eight-byte length and a message.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rand::RngCore;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::RankError;
use crate::collective::Collective;

/// Environment variable with the address that the first rank listens on and the others connect to, where its host name
/// does not lead to it.
pub const ADDRESS_VARIABLE: &str = "AJET_RANKS_ADDRESS";

/// How long ranks wait for each other's connection.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a connection begins with, so that no other program can take a rank's place.
const SECRET_BYTES: usize = 32;

/// What each rank tells all others before there are connections.
#[derive(Serialize, Deserialize)]
struct Introduction {
    host: String,
    /// Port and secret of the first rank.
    port: u16,
    secret: [u8; SECRET_BYTES],
}

/// The writing end of a connection. The reading end is a thread that sends what arrives to a channel, so that no rank
/// waits for another that is writing.
#[derive(Debug)]
pub struct Link {
    /// The rank at the other end.
    pub rank: usize,
    writer: BufWriter<TcpStream>,
}

impl Link {
    /// Sends a message.
    ///
    /// # Errors
    /// Fails if the other rank has ended.
    pub fn send(&mut self, message: &impl Serialize) -> Result<(), RankError> {
        let gone = |_| RankError::Gone { rank: self.rank };
        let bytes = encode(message, self.rank)?;
        self.writer
            .write_all(&(bytes.len() as u64).to_le_bytes())
            .map_err(gone)?;
        self.writer.write_all(&bytes).map_err(gone)?;
        self.writer.flush().map_err(gone)
    }
}

impl Drop for Link {
    /// Closes the connection, which the thread that reads from it keeps open otherwise.
    fn drop(&mut self) {
        let _ = self.writer.get_ref().shutdown(Shutdown::Both); // the other end may have closed it
    }
}

fn encode(message: &impl Serialize, rank: usize) -> Result<Vec<u8>, RankError> {
    rmp_serde::to_vec_named(message).map_err(|error| invalid(rank, error))
}

fn invalid(rank: usize, error: impl std::fmt::Display) -> RankError {
    RankError::Message {
        rank,
        reason: error.to_string(),
    }
}

/// A message, or why there are no more, with the rank that it is from.
pub type Arrival<T> = (usize, Result<T, RankError>);

/// Connects all ranks. The first one gets a link to each of the others, in their order; the others get one to the first.
/// Messages that arrive come through the channel. Every rank calls this at the same time.
///
/// # Errors
/// Fails if the first rank cannot listen, or a rank does not connect in time.
pub fn connect<T: DeserializeOwned + Send + 'static>(
    collective: &dyn Collective,
) -> Result<(Vec<Link>, Receiver<Arrival<T>>), RankError> {
    let mut own = Introduction {
        host: super::local::host(),
        port: 0,
        secret: [0; SECRET_BYTES],
    };
    let mut listener = None;
    if collective.rank() == 0 {
        // On all interfaces, since the hosts of the others are not known yet; the secret says who may stay.
        let any = match std::env::var(ADDRESS_VARIABLE) {
            Ok(address) => bind(&address)?,
            Err(_) => bind_to(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?,
        };
        own.port = any.local_addr().map_err(|source| failed("0.0.0.0", source))?.port();
        rand::rng().fill_bytes(&mut own.secret);
        listener = Some(any);
    }
    let introductions = collective.all_gather(&encode(&own, collective.rank())?)?;
    let first: Introduction = rmp_serde::from_slice(&introductions[0]).map_err(|error| invalid(0, error))?;
    let (arrivals, inbox) = channel();
    let links = match listener {
        Some(listener) => accept_all(&listener, &first.secret, collective.size(), &arrivals)?,
        None => vec![connect_to(&first, &own.host, collective.rank(), &arrivals)?],
    };
    Ok((links, inbox))
}

fn failed(address: &str, source: io::Error) -> RankError {
    RankError::Connect {
        address: address.to_owned(),
        source,
    }
}

fn bind(address: &str) -> Result<TcpListener, RankError> {
    let resolved = (address, 0)
        .to_socket_addrs()
        .map_err(|source| failed(address, source))?;
    let none = || failed(address, io::Error::from(io::ErrorKind::AddrNotAvailable));
    bind_to(resolved.into_iter().next().ok_or_else(none)?)
}

fn bind_to(address: SocketAddr) -> Result<TcpListener, RankError> {
    TcpListener::bind(address).map_err(|source| failed(&address.to_string(), source))
}

fn accept_all<T: DeserializeOwned + Send + 'static>(
    listener: &TcpListener,
    secret: &[u8; SECRET_BYTES],
    ranks: usize,
    arrivals: &Sender<Arrival<T>>,
) -> Result<Vec<Link>, RankError> {
    let here = || {
        listener
            .local_addr()
            .map_or_else(|_| String::new(), |address| address.to_string())
    };
    let (begun, mut links) = (Instant::now(), vec![]);
    listener
        .set_nonblocking(true)
        .map_err(|source| failed(&here(), source))?;
    while links.len() + 1 < ranks {
        match listener.accept() {
            // One that does not know the secret is closed.
            Ok((stream, _)) => links.extend(greet(stream, secret, ranks)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(failed(&here(), error)),
        }
    }
    links.sort_by_key(|(rank, _)| *rank);
    let link = |(rank, stream)| start(rank, stream, arrivals).map_err(|source| failed(&here(), source));
    links.into_iter().map(link).collect()
}

/// Reads who connects; `None` for a stranger.
fn greet(mut stream: TcpStream, secret: &[u8; SECRET_BYTES], ranks: usize) -> Option<(usize, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    let (mut given, mut rank) = ([0; SECRET_BYTES], [0; 8]);
    stream.read_exact(&mut given).ok()?;
    stream.read_exact(&mut rank).ok()?;
    stream.set_read_timeout(None).ok()?;
    let rank = usize::try_from(u64::from_le_bytes(rank)).ok()?;
    (given == *secret && (1..ranks).contains(&rank)).then_some((rank, stream))
}

fn connect_to<T: DeserializeOwned + Send + 'static>(
    first: &Introduction,
    host: &str,
    rank: usize,
    arrivals: &Sender<Arrival<T>>,
) -> Result<Link, RankError> {
    let address = match std::env::var(ADDRESS_VARIABLE) {
        Ok(address) => address,
        Err(_) if first.host == host => IpAddr::from(Ipv4Addr::LOCALHOST).to_string(),
        Err(_) => first.host.clone(),
    };
    let connected = TcpStream::connect((address.as_str(), first.port)).and_then(|mut stream| {
        stream.write_all(&first.secret)?;
        stream.write_all(&(rank as u64).to_le_bytes())?;
        start(0, stream, arrivals)
    });
    connected.map_err(|source| failed(&format!("{address}:{}", first.port), source))
}

/// Starts reading from a connection.
fn start<T: DeserializeOwned + Send + 'static>(
    rank: usize,
    stream: TcpStream,
    arrivals: &Sender<Arrival<T>>,
) -> io::Result<Link> {
    stream.set_nodelay(true)?;
    let writer = BufWriter::new(stream.try_clone()?);
    let arrivals = arrivals.clone();
    std::thread::Builder::new()
        .name(format!("rank {rank}"))
        .spawn(move || {
            let mut reader = BufReader::new(stream);
            loop {
                let message = match read_frame(&mut reader) {
                    Ok(bytes) => rmp_serde::from_slice(&bytes).map_err(|error| invalid(rank, error)),
                    Err(_) => Err(RankError::Gone { rank }),
                };
                let last = message.is_err();
                // No receiver: the rank is ending.
                if arrivals.send((rank, message)).is_err() || last {
                    return;
                }
            }
        })?;
    Ok(Link { rank, writer })
}

fn read_frame(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    reader.read_exact(&mut length)?;
    // Grows as bytes arrive, so that a damaged length does not reserve memory.
    let (length, mut bytes) = (u64::from_le_bytes(length), vec![]);
    reader.take(length).read_to_end(&mut bytes)?;
    match bytes.len() as u64 == length {
        true => Ok(bytes),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::threads::run;

    #[test]
    fn ranks_exchange_messages_in_order_and_see_each_other_end() {
        let found = run(3, |collective| {
            let (mut links, inbox) = connect::<Vec<u32>>(&*collective).unwrap();
            if collective.rank() == 0 {
                let order: Vec<usize> = links.iter().map(|link| link.rank).collect();
                assert_eq!(order, [1, 2]);
                links
                    .iter_mut()
                    .for_each(|link| link.send(&vec![link.rank as u32; 300_000]).unwrap());
                let (mut received, mut ended) = ([0; 3], vec![]);
                while ended.len() < 2 {
                    match inbox.recv().unwrap() {
                        (rank, Ok(message)) => {
                            assert_eq!(
                                (message.len(), message[0]),
                                (100_000, received[rank]),
                                "whole and in order"
                            );
                            received[rank] += 1;
                        }
                        (rank, Err(RankError::Gone { rank: gone })) if gone == rank => ended.push(rank),
                        (_, Err(error)) => panic!("{error}"),
                    }
                }
                return received.to_vec();
            }
            // Both write much before they read, as must not block them.
            (0..10_u32).for_each(|number| links[0].send(&vec![number; 100_000]).unwrap());
            inbox.recv().unwrap().1.unwrap()[..2].to_vec()
        });
        assert_eq!(found, [vec![0, 10, 10], vec![1, 1], vec![2, 2]]);
    }

    #[test]
    fn strangers_are_not_taken_for_ranks() {
        let secret = [7; SECRET_BYTES];
        let sent: [(&[u8], u64); 4] = [(&[7; 32], 1), (&[8; 32], 1), (&[7; 32], 0), (&[7; 32], 3)];
        for (number, (given, rank)) in sent.into_iter().enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            stream.write_all(given).unwrap();
            stream.write_all(&rank.to_le_bytes()).unwrap();
            let taken = greet(listener.accept().unwrap().0, &secret, 3).map(|(rank, _)| rank);
            assert_eq!(taken, (number == 0).then_some(1), "{number}");
        }
    }

    #[test]
    fn a_frame_that_ends_early_is_an_end() {
        assert_eq!(read_frame(&mut &[2, 0, 0, 0, 0, 0, 0, 0, 5, 6][..]).unwrap(), [5, 6]);
        for bytes in [&[][..], &[1, 0], &[2, 0, 0, 0, 0, 0, 0, 0, 5], &[255; 9]] {
            assert!(read_frame(&mut &*bytes).is_err(), "{bytes:?}");
        }
    }
}
