//! A connection whose other end has to read what it has asked for.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Fails when nothing could be written for so long. A browser that hangs holds its connection no longer than that.
pub(super) struct Patient<S> {
    stream: S,
    patience: Duration,
    /// While the other end takes nothing.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, stuck: None }
    }

    fn wait<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(self.patience)));
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.wait(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::UnixStream;

    use super::*;

    /// More than a socket holds.
    const MANY: usize = 16 << 20;

    /// Writes so many bytes.
    async fn write(to: &mut Patient<UnixStream>, bytes: usize) -> io::Result<usize> {
        let (piece, mut written) = ([0; 4096], 0);
        while written < bytes {
            let wanted = &piece[..piece.len().min(bytes - written)];
            written += poll_fn(|context| Pin::new(&mut *to).poll_write(context, wanted)).await?;
        }
        Ok(written)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(test);
    }

    #[test]
    fn who_reads_nothing_is_dropped() {
        run(async {
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let mut patient = Patient::new(ours, Duration::from_millis(1));
            let error = write(&mut patient, MANY).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn who_reads_is_not() {
        run(async {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut patient = Patient::new(ours, Duration::from_secs(3600));
            let read = async {
                let mut read = 0;
                while read < MANY {
                    theirs.readable().await.unwrap();
                    read += theirs.try_read(&mut [0; 4096]).unwrap_or(0);
                }
                read
            };
            let (written, read) = tokio::join!(write(&mut patient, MANY), read);
            assert_eq!((written.unwrap(), read), (MANY, MANY));
        });
    }
}
