package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// Large enough that a read takes in more than a thousand small messages, small enough that the
	// buffer stays in the second-level cache.
	readBufferBytes = 256 << 10
	dialTimeout     = 10 * time.Second
	// How long a reply may take before the run counts as failed.
	replyTimeout = 30 * time.Second
)

// frameConn is a client connection that reads frames in place from one reused buffer.
type frameConn struct {
	net.Conn
	buf        []byte
	start, end int             // unread bytes are buf[start:end]
	spinning   syscall.RawConn // set when reads must not sleep
}

// dial opens an NSQ connection and announces the protocol; bufferBytes is the size of one read.
func dial(address string, bufferBytes int) (*frameConn, error) {
	conn, err := dialPlain(address, bufferBytes)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte(magic)); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// dialPlain opens a connection of a protocol that begins without a greeting.
func dialPlain(address string, bufferBytes int) (*frameConn, error) {
	conn, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil {
		return nil, err
	}
	return &frameConn{Conn: conn, buf: make([]byte, bufferBytes)}, nil
}

// fill reads once, after whatever is left of an incomplete frame.
func (c *frameConn) fill() error {
	c.end = copy(c.buf, c.buf[c.start:c.end])
	c.start = 0
	if c.end == len(c.buf) { // one frame larger than the buffer
		c.buf = append(c.buf, make([]byte, len(c.buf))...)
	}
	read := c.Read
	if c.spinning != nil {
		read = c.readSpinning
	}
	n, err := read(c.buf[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	return err
}

// spin makes every later read poll the socket instead of sleeping until it is readable.
func (c *frameConn) spin() error {
	socket, err := c.Conn.(*net.TCPConn).SyscallConn()
	c.spinning = socket
	return err
}

func (c *frameConn) readSpinning(buf []byte) (n int, err error) {
	giveUp := time.Now().Add(replyTimeout)
	rawErr := c.spinning.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), buf)
			if err != syscall.EAGAIN && err != syscall.EINTR {
				return true
			}
			if time.Now().After(giveUp) {
				err = os.ErrDeadlineExceeded
				return true
			}
		}
	})
	switch {
	case rawErr != nil:
		return 0, rawErr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// next returns the next whole frame in the buffer; ok is false when there is none.
// data is valid until fill is called.
func (c *frameConn) next() (frameType uint32, data []byte, ok bool) {
	unread := c.buf[c.start:c.end]
	if len(unread) < frameHeadBytes {
		return 0, nil, false
	}
	frameEnd := 4 + int(binary.BigEndian.Uint32(unread))
	if len(unread) < frameEnd {
		return 0, nil, false
	}
	c.start += frameEnd
	return binary.BigEndian.Uint32(unread[4:]), unread[frameHeadBytes:frameEnd], true
}

// isOK tells a reply to a command (true) from a heartbeat, which it answers (false). Anything else
// is an error: a benchmark that goes on after a refused command measures the wrong thing.
func (c *frameConn) isOK(frameType uint32, data []byte) (bool, error) {
	if frameType == frameResponse && len(data) == 2 && data[0] == 'O' && data[1] == 'K' {
		return true, nil
	}
	if frameType == frameResponse && bytes.Equal(data, heartbeat) {
		_, err := c.Write(nop)
		return false, err
	}
	return false, unexpectedFrame(frameType, data)
}

// request sends a command and waits for its OK. Only for commands before the traffic starts.
func (c *frameConn) request(command []byte) error {
	if _, err := c.Write(command); err != nil {
		return err
	}
	c.SetReadDeadline(time.Now().Add(replyTimeout))
	defer c.SetReadDeadline(time.Time{})
	for {
		frameType, data, ok := c.next()
		if !ok {
			if err := c.fill(); err != nil {
				return err
			}
			continue
		}
		if done, err := c.isOK(frameType, data); done || err != nil {
			return err
		}
	}
}

func unexpectedFrame(frameType uint32, data []byte) error {
	const shown = 200
	if frameType == frameError {
		return fmt.Errorf("error frame %q", data[:min(len(data), shown)])
	}
	return fmt.Errorf("unexpected frame of type %d: %q", frameType, data[:min(len(data), shown)])
}

// openAll opens and identifies count connections, so that a run's clock starts with all of them ready.
func openAll(address, clientID string, count int) ([]*frameConn, error) {
	conns := make([]*frameConn, 0, count)
	for i := range count {
		conn, err := dial(address, readBufferBytes)
		if err == nil {
			conns = append(conns, conn)
			err = conn.request(identifyCommand(fmt.Sprintf("%s-%d", clientID, i)))
		}
		if err != nil {
			closeAll(conns)
			return nil, fmt.Errorf("connection %d: %w", i, err)
		}
	}
	return conns, nil
}

// runAll runs one function per connection and returns the first failure. A failure closes every
// connection, so that the others do not go on for the rest of the run.
func runAll(conns []*frameConn, run func(i int) error) error {
	var (
		running sync.WaitGroup
		once    sync.Once
		failure error
	)
	for i := range conns {
		running.Go(func() {
			if err := run(i); err != nil {
				once.Do(func() {
					failure = fmt.Errorf("connection %d: %w", i, err)
					closeAll(conns)
				})
			}
		})
	}
	running.Wait()
	return failure
}

func closeAll(conns []*frameConn) {
	for _, conn := range conns {
		conn.Close()
	}
}
