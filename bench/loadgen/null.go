package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// Replies and messages are written from blocks prepared once; longer runs take several writes.
	nullReplyBlock   = 4096
	nullMessageBytes = 256 << 10
	// A client that writes FINs one by one wakes a server that has nothing else to do for each of
	// them, and pays for that itself. A busy server finds many at once; this one waits a little.
	tricklingRead = 10 * finishBytes
	gatherDelay   = 50 * time.Microsecond
)

type nullSettings struct {
	address   string
	bodyBytes int
	json      bool
}

// nullListening is printed once the server accepts connections.
type nullListening struct {
	Tool    string `json:"tool"`
	PID     int    `json:"pid"`
	Address string `json:"address"`
}

func runNull(flags *flag.FlagSet, args []string) error {
	var settings nullSettings
	flags.StringVar(&settings.address, "address", "127.0.0.1:4150", "address to listen on; port 0 takes a free one")
	flags.IntVar(&settings.bodyBytes, "body", 100, "body size of the messages that subscribers get")
	flags.BoolVar(&settings.json, "json", false, "print the address as one JSON object")
	flags.Parse(args)
	if settings.bodyBytes < 1 {
		return errors.New("-body must be at least 1")
	}
	listener, err := net.Listen("tcp", settings.address)
	if err != nil {
		return err
	}
	address := listener.Addr().String()
	if err := report(settings.json, nullListening{"nsq-null", os.Getpid(), address}, "listening on "+address); err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		listener.Close()
	}()
	return newNullServer(settings.bodyBytes).serve(listener)
}

// nullServer answers as an NSQ server does and keeps nothing: publishing is acknowledged by length
// alone, and every subscriber draws from an endless channel of equal messages.
type nullServer struct {
	replies    []byte // OK frames back to back
	messages   []byte // message frames back to back, each with its own id
	frameBytes int    // of one message
}

func newNullServer(bodyBytes int) *nullServer {
	body := bytes.Repeat([]byte{'x'}, bodyBytes)
	frameBytes := len(appendMessage(nil, 0, body))
	var messages []byte
	for id := range max(1, nullMessageBytes/frameBytes) {
		messages = appendMessage(messages, uint64(id), body)
	}
	return &nullServer{
		replies:    bytes.Repeat(appendFrame(nil, frameResponse, []byte("OK")), nullReplyBlock),
		messages:   messages,
		frameBytes: frameBytes,
	}
}

// serve accepts connections until the listener is closed. A connection's failure is its own.
func (s *nullServer) serve(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			if err := s.handle(conn); err != nil {
				fmt.Fprintf(os.Stderr, "loadgen nsq-null: %v\n", err)
			}
		}()
	}
}

// handle serves one connection until the client closes it.
func (s *nullServer) handle(conn net.Conn) error {
	defer conn.Close()
	window := newWindow()
	defer window.close()

	commands := commandReader{buf: make([]byte, readBufferBytes)}
	streaming := false
	for {
		n, err := conn.Read(commands.buf[commands.end:])
		if err != nil {
			return nil // the client is gone: benchmarks end like this
		}
		commands.end += n
		seen, err := commands.parse()
		if err != nil {
			conn.Write(appendFrame(nil, frameError, []byte(err.Error())))
			return err
		}
		// Replies leave before the window opens: a subscriber expects SUB's OK ahead of messages.
		if err := s.reply(conn, seen.replies); err != nil {
			return nil
		}
		if seen.ready >= 0 && !streaming {
			streaming = true
			go s.stream(conn, window)
		}
		opened := window.update(seen.ready, seen.settled)
		if n < tricklingRead && seen.settled > 0 && !opened {
			time.Sleep(gatherDelay)
		}
		if seen.closing {
			if _, err := conn.Write(appendFrame(nil, frameResponse, closeWait)); err != nil {
				return nil
			}
		}
	}
}

func (s *nullServer) reply(conn net.Conn, count int) error {
	const replyBytes = frameHeadBytes + len("OK")
	for count > 0 {
		n := min(count, nullReplyBlock)
		if _, err := conn.Write(s.replies[:n*replyBytes]); err != nil {
			return err
		}
		count -= n
	}
	return nil
}

// stream writes messages as far as the window allows. It runs beside the reader, so that a client
// that is busy writing FINs never waits for a server that is busy writing messages.
func (s *nullServer) stream(conn net.Conn, window *window) {
	blockMessages := len(s.messages) / s.frameBytes
	for {
		n := window.take(blockMessages)
		if n == 0 {
			return
		}
		if _, err := conn.Write(s.messages[:n*s.frameBytes]); err != nil {
			return // the reader notices too and closes
		}
	}
}

// window is a subscriber's flow control: in flight are at most ready messages.
type window struct {
	mu       sync.Mutex
	changed  *sync.Cond
	ready    int
	inFlight int
	closed   bool
}

func newWindow() *window {
	w := new(window)
	w.changed = sync.NewCond(&w.mu)
	return w
}

// update notes settled messages and a new RDY count, which stays as it is when ready is negative.
// It tells whether messages can be sent now.
func (w *window) update(ready, settled int) bool {
	if ready < 0 && settled == 0 {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if ready >= 0 {
		w.ready = ready
	}
	w.inFlight -= settled
	w.changed.Signal()
	return w.isOpen()
}

// isOpen tells whether a quarter of the window is free.
//
// Answering every FIN at once would cost a client that sends them singly one read per message, where
// real servers gather messages in an output buffer: the ceiling would lie below what they reach.
func (w *window) isOpen() bool {
	return w.ready-w.inFlight >= max(1, w.ready/4)
}

// take waits until the window is open and claims up to most messages; 0 means it was closed.
func (w *window) take(most int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.closed && !w.isOpen() {
		w.changed.Wait()
	}
	if w.closed {
		return 0
	}
	n := min(most, w.ready-w.inFlight)
	w.inFlight += n
	return n
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Signal()
}

// commandReader finds command boundaries in what was read and skips bodies by their length.
type commandReader struct {
	buf     []byte
	end     int // unparsed bytes are buf[:end] between calls of parse
	greeted bool
	skip    int // body bytes of a command that are still to come
}

// commandsSeen is what one read asked of the server.
type commandsSeen struct {
	replies int  // commands to answer with OK
	settled int  // FIN and REQ
	ready   int  // last RDY count, -1 for none
	closing bool // CLS
}

// parse consumes every whole command in the buffer and moves the rest to its front.
func (r *commandReader) parse() (commandsSeen, error) {
	seen := commandsSeen{ready: -1}
	pos := 0
	if !r.greeted {
		if r.end < len(magic) {
			return seen, nil
		}
		if string(r.buf[:len(magic)]) != magic {
			return seen, errors.New("E_BAD_PROTOCOL")
		}
		r.greeted = true
		pos = len(magic)
	}
	for pos < r.end {
		if r.skip > 0 {
			n := min(r.skip, r.end-pos)
			pos += n
			r.skip -= n
			if r.skip > 0 {
				break
			}
			seen.replies++
			continue
		}
		n, err := r.parseCommand(r.buf[pos:r.end], &seen)
		if err != nil {
			return seen, err
		}
		if n == 0 {
			break
		}
		pos += n
	}
	r.end = copy(r.buf, r.buf[pos:r.end])
	if r.end == len(r.buf) {
		return seen, errors.New("E_INVALID command line too long")
	}
	return seen, nil
}

// parseCommand reads the command that unread begins with and returns its bytes up to the body's
// first, 0 while they are incomplete. The first letters suffice to tell the commands apart.
func (r *commandReader) parseCommand(unread []byte, seen *commandsSeen) (int, error) {
	if unread[0] == 'F' && len(unread) >= finishBytes { // FIN, without a search for its end
		seen.settled++
		return finishBytes, nil
	}
	newline := bytes.IndexByte(unread, '\n')
	if newline < 0 {
		return 0, nil
	}
	line, length := unread[:newline], newline+1
	switch {
	case bytes.HasPrefix(line, []byte("PUB ")), bytes.HasPrefix(line, []byte("MPUB ")),
		bytes.HasPrefix(line, []byte("DPUB ")), bytes.Equal(line, []byte("IDENTIFY")):
		if len(unread) < length+4 {
			return 0, nil
		}
		r.skip = int(binary.BigEndian.Uint32(unread[length:]))
		if r.skip == 0 {
			return 0, fmt.Errorf("E_BAD_BODY %s without a body", line)
		}
		return length + 4, nil
	case bytes.HasPrefix(line, []byte("SUB ")):
		seen.replies++
	case bytes.HasPrefix(line, []byte("RDY ")):
		count, err := strconv.Atoi(string(line[len("RDY "):]))
		if err != nil || count < 0 {
			return 0, fmt.Errorf("E_INVALID %s", line)
		}
		seen.ready = count
	case bytes.HasPrefix(line, []byte("REQ ")):
		seen.settled++
	case bytes.Equal(line, []byte("CLS")):
		seen.ready = 0
		seen.closing = true
	case bytes.Equal(line, []byte("NOP")), bytes.HasPrefix(line, []byte("TOUCH ")):
	default:
		return 0, fmt.Errorf("E_INVALID invalid command %q", line)
	}
	return length, nil
}
