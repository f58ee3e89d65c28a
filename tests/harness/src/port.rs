//! A loopback TCP port that stays ours, also while nobody listens on it.
//!
//! Tests run side by side, and each takes ports. A port that is looked up by binding port 0 and closing
//! again may be given to another test before the server comes up, or while the server is down on
//! purpose. So the socket that found the port stays bound for as long as the port is used: bound but
//! not listening, it refuses connections, and the kernel hands the port to nobody else.

use std::io;
use std::net::Ipv4Addr;

use rustix::net::{Shutdown, shutdown};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// A reserved port on 127.0.0.1.
pub struct Port {
    number: u16,
    _reservation: Option<TcpSocket>,
}

impl Port {
    /// Reserves a port that is free now.
    pub fn reserve() -> io::Result<Self> {
        let socket = bind(0)?;
        let number = socket.local_addr()?.port();

        // Linux lets a listener join a port that is bound with SO_REUSEADDR as long as nobody
        // listens there. Other systems do not, and there the port is only a good guess.
        let _reservation = cfg!(target_os = "linux").then_some(socket);

        Ok(Self { number, _reservation })
    }

    pub fn number(&self) -> u16 {
        self.number
    }

    /// Listens on the port. Needs a tokio runtime.
    pub fn listen(&self) -> io::Result<Listener> {
        Ok(Listener(bind(self.number)?.listen(1024)?))
    }
}

/// A listener whose port refuses from the moment that it is dropped.
pub struct Listener(TcpListener);

impl Listener {
    pub async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.0.accept().await?;
        Ok(stream)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Closing is not enough: a process that is being started by another thread holds a copy of each
        // descriptor until it becomes another program, and would go on listening for that long. Where
        // the system knows no shutdown of listeners, it fails and closing has to do.
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}

fn bind(port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    Ok(socket)
}
