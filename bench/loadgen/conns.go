package main

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Connections with little traffic get small buffers, or 10,000 of them would measure this
	// program's memory.
	quietBufferBytes = 4 << 10
	// Connections being opened at one time: fewer than any usual listen backlog.
	openingAtOnce = 64
	// Every message names its run and its number in it.
	stampBytes = 16
	errorsKept = 5
)

type connsSettings struct {
	address     string
	topic       string
	channel     string
	topics      int
	connections int
	publish     int
	depth       int
	consume     bool
	ready       int
	bodyBytes   int
	hold        time.Duration
	timeout     time.Duration
	json        bool
}

func (s *connsSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:4150", "server's NSQ TCP address")
	flags.StringVar(&s.topic, "topic", "conns", "topic, or the beginning of the topics' names")
	flags.StringVar(&s.channel, "channel", "ch", "channel to consume from")
	flags.IntVar(&s.topics, "topics", 1, "topics to spread the connections over")
	flags.IntVar(&s.connections, "connections", 1000, "connections")
	flags.IntVar(&s.publish, "publish", 2, "messages each connection publishes; 0 only consumes")
	flags.IntVar(&s.depth, "depth", 0, "of these in flight per connection; 1 also measures latency, 0 sends all at once")
	flags.BoolVar(&s.consume, "consume", true, "subscribe every connection as well")
	flags.IntVar(&s.ready, "rdy", 1, "RDY window of each connection")
	flags.IntVar(&s.bodyBytes, "body", 100, "body size in bytes")
	flags.DurationVar(&s.hold, "hold", 0, "keep all connections open this long after the traffic")
	flags.DurationVar(&s.timeout, "timeout", time.Minute, "give up when the traffic is not done by then")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *connsSettings) validate() error {
	if min(s.connections, s.topics, s.ready) < 1 || min(s.publish, s.depth) < 0 {
		return errors.New("-connections, -topics and -rdy must be at least 1, -publish and -depth not negative")
	}
	if s.bodyBytes < stampBytes {
		return fmt.Errorf("-body must be at least %d", stampBytes)
	}
	return nil
}

// topicOf is the topic of one connection: publishers and subscribers of a topic are the same ones.
func (s *connsSettings) topicOf(connection int) string {
	if s.topics == 1 {
		return s.topic
	}
	return fmt.Sprintf("%s-%d", s.topic, connection%s.topics)
}

type connsReport struct {
	Tool           string   `json:"tool"`
	Connections    int      `json:"connections"`
	Opened         int      `json:"opened"`
	Published      int64    `json:"published"`
	Consumed       int64    `json:"consumed"`
	Missing        int64    `json:"missing"`
	Duplicates     int64    `json:"duplicates"`
	Foreign        int64    `json:"foreign"` // messages that another run left behind
	Errors         int64    `json:"errors"`
	FirstErrors    []string `json:"first_errors"`
	ConnectSeconds float64  `json:"connect_seconds"`
	TrafficSeconds float64  `json:"traffic_seconds"`
	// From the write of a PUB to its reply, for depth 1 only.
	LatencyUS *latencyReport `json:"latency_us,omitempty"`
}

// crowd is one run of nsq-conns: the connections and what is known of their messages.
type crowd struct {
	settings connsSettings
	runID    uint64
	conns    []*frameConn // nil where opening failed
	expected int64        // messages that the opened connections publish

	received   []atomic.Uint32 // by message number
	published  atomic.Int64
	consumed   atomic.Int64 // distinct messages of this run
	duplicates atomic.Int64
	foreign    atomic.Int64
	closing    atomic.Bool // reads fail from now on, and that is no error

	mu          sync.Mutex
	errors      int64
	firstErrors []string
	latency     histogram // from PUB to reply; filled for depth 1 only
}

func (c *crowd) fail(connection int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors++
	if len(c.firstErrors) < errorsKept {
		c.firstErrors = append(c.firstErrors, fmt.Sprintf("connection %d: %v", connection, err))
	}
}

// open opens every connection and subscribes it; it returns how many are ready. Connections that
// fail are errors, and their messages are not waited for.
func (c *crowd) open() int {
	slots := make(chan struct{}, openingAtOnce)
	var opening sync.WaitGroup
	var opened atomic.Int64
	for i := range c.conns {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			conn, err := c.openOne(i)
			if err != nil {
				c.fail(i, err)
				return
			}
			c.conns[i] = conn
			opened.Add(1)
		})
	}
	opening.Wait()
	c.expected = opened.Load() * int64(c.settings.publish)
	return int(opened.Load())
}

func (c *crowd) openOne(i int) (*frameConn, error) {
	conn, err := dial(c.settings.address, quietBufferBytes)
	if err != nil {
		return nil, err
	}
	err = conn.request(identifyCommand(fmt.Sprintf("nsq-conns-%d", i)))
	if err == nil && c.settings.consume {
		err = conn.request(subCommand(c.settings.topicOf(i), c.settings.channel))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// member is one connection of the crowd while there is traffic.
type member struct {
	*crowd
	conn   *frameConn
	number int
	body   []byte
	sent   int // messages published, answered or not
	sentAt time.Time
}

// converse publishes this connection's messages and then takes frames until the connection closes.
func (c *crowd) converse(i int) error {
	m := &member{crowd: c, conn: c.conns[i], number: i, body: make([]byte, c.settings.bodyBytes)}
	binary.BigEndian.PutUint64(m.body, c.runID)
	var commands []byte
	if c.settings.consume {
		commands = rdyCommand(c.settings.ready)
	}
	atOnce := c.settings.publish
	if c.settings.depth > 0 {
		atOnce = min(atOnce, c.settings.depth)
	}
	for range atOnce {
		commands = m.appendNext(commands)
	}
	m.sentAt = time.Now()
	if _, err := m.conn.Write(commands); err != nil {
		return err
	}
	for {
		frameType, data, ok := m.conn.next()
		if !ok {
			if err := m.conn.fill(); err != nil {
				return err
			}
			continue
		}
		if err := m.take(frameType, data); err != nil {
			return err
		}
	}
}

// appendNext appends the PUB of this connection's next message to dst.
func (m *member) appendNext(dst []byte) []byte {
	binary.BigEndian.PutUint64(m.body[8:], uint64(m.number*m.settings.publish+m.sent))
	m.sent++
	return append(dst, pubCommand(m.settings.topicOf(m.number), m.body)...)
}

func (m *member) take(frameType uint32, data []byte) error {
	if frameType != frameMessage {
		isOK, err := m.conn.isOK(frameType, data)
		if isOK {
			return m.takeReply()
		}
		return err
	}
	m.note(data[messageHeadBytes:])
	_, err := m.conn.Write(fmt.Appendf(nil, "FIN %s\n", data[messageIDStart:messageHeadBytes]))
	return err
}

// takeReply notes one acknowledged message and publishes the next, if there is one.
func (m *member) takeReply() error {
	now := time.Now()
	m.published.Add(1)
	if m.settings.depth == 1 {
		m.mu.Lock()
		m.latency.record(now.Sub(m.sentAt))
		m.mu.Unlock()
	}
	if m.sent == m.settings.publish {
		return nil
	}
	m.sentAt = now
	_, err := m.conn.Write(m.appendNext(nil))
	return err
}

// note counts one delivered body.
func (c *crowd) note(body []byte) {
	if len(body) < stampBytes || binary.BigEndian.Uint64(body) != c.runID {
		c.foreign.Add(1)
		return
	}
	number := binary.BigEndian.Uint64(body[8:])
	switch {
	case number >= uint64(len(c.received)):
		c.foreign.Add(1)
	case c.received[number].Add(1) > 1:
		c.duplicates.Add(1)
	default:
		c.consumed.Add(1)
	}
}

// isDone tells whether every message was acknowledged and, where connections consume, delivered.
func (c *crowd) isDone() bool {
	return c.published.Load() >= c.expected && (!c.settings.consume || c.consumed.Load() >= c.expected)
}

// runTraffic starts every connection, waits until all is done or the timeout passes, holds the
// connections open as asked and closes them. It returns the time to the last message.
func (c *crowd) runTraffic() time.Duration {
	start := time.Now()
	var running sync.WaitGroup
	for i, conn := range c.conns {
		if conn == nil {
			continue
		}
		running.Go(func() {
			if err := c.converse(i); err != nil && !c.closing.Load() {
				c.fail(i, err)
			}
		})
	}
	for !c.isDone() && time.Since(start) < c.settings.timeout {
		time.Sleep(time.Millisecond)
	}
	elapsed := time.Since(start)
	time.Sleep(c.settings.hold)
	c.closing.Store(true)
	for _, conn := range c.conns {
		if conn != nil {
			conn.Close()
		}
	}
	running.Wait()
	return elapsed
}

func runConns(flags *flag.FlagSet, args []string) error {
	var settings connsSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result := converseAll(settings)
	text := fmt.Sprintf("%d of %d connections opened in %.3f s; %d messages published, %d consumed in %.3f s; "+
		"%d missing, %d duplicates, %d errors",
		result.Opened, result.Connections, result.ConnectSeconds, result.Published, result.Consumed,
		result.TrafficSeconds, result.Missing, result.Duplicates, result.Errors)
	if err := report(settings.json, result, text); err != nil {
		return err
	}
	if result.Errors > 0 || result.Missing > 0 {
		return fmt.Errorf("%d errors, %d messages missing: %q", result.Errors, result.Missing, result.FirstErrors)
	}
	return nil
}

// converseAll runs one crowd and returns its figures.
func converseAll(settings connsSettings) connsReport {
	c := &crowd{
		settings: settings,
		runID:    uint64(time.Now().UnixNano()),
		conns:    make([]*frameConn, settings.connections),
		received: make([]atomic.Uint32, settings.connections*settings.publish),
	}
	start := time.Now()
	opened := c.open()
	connect := time.Since(start)
	traffic := c.runTraffic()

	missing := c.expected - c.published.Load()
	if settings.consume {
		missing = c.expected - c.consumed.Load()
	}
	result := connsReport{
		Tool:           "nsq-conns",
		Connections:    settings.connections,
		Opened:         opened,
		Published:      c.published.Load(),
		Consumed:       c.consumed.Load(),
		Missing:        missing,
		Duplicates:     c.duplicates.Load(),
		Foreign:        c.foreign.Load(),
		Errors:         c.errors,
		FirstErrors:    append([]string{}, c.firstErrors...),
		ConnectSeconds: connect.Seconds(),
		TrafficSeconds: traffic.Seconds(),
	}
	if c.latency.total > 0 {
		result.LatencyUS = newLatencyReport(&c.latency)
	}
	return result
}
