package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"time"
)

// publishBlockBytes bounds one write. Several blocks in flight let the server work on one while the
// next is being sent.
const publishBlockBytes = 128 << 10

// pubSettings are the flags of nsq-pub.
type pubSettings struct {
	address     string
	topic       string
	connections int
	bodyBytes   int
	batch       int
	depth       int
	spin        bool
	duration    time.Duration
	count       int64
	json        bool
}

func (s *pubSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:4150", "server's NSQ TCP address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to publish to")
	flags.IntVar(&s.connections, "connections", 1, "connections")
	flags.IntVar(&s.bodyBytes, "body", 100, "body size in bytes")
	flags.IntVar(&s.batch, "batch", 1, "messages per command: 1 sends PUB, more sends MPUB")
	flags.IntVar(&s.depth, "depth", 16, "commands in flight per connection; 1 also measures latency")
	flags.BoolVar(&s.spin, "spin", false, "poll for replies instead of sleeping: takes this side's wake-up out of the latency; needs a core of its own")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long to publish")
	flags.Int64Var(&s.count, "count", 0, "stop after this many messages (rounded up to whole batches) instead of after -duration")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *pubSettings) validate() error {
	if min(s.connections, s.bodyBytes, s.batch, s.depth) < 1 {
		return errors.New("-connections, -body, -batch and -depth must be at least 1")
	}
	if s.spin && s.connections > 1 {
		return errors.New("-spin takes a whole core and so only one connection")
	}
	return nil
}

// commandsPerConnection is the limit of each connection, or -1 when the duration is the limit.
func (s *pubSettings) commandsPerConnection() int64 {
	if s.count == 0 {
		return -1
	}
	perCommand := int64(s.batch * s.connections)
	return (s.count + perCommand - 1) / perCommand
}

// latencyReport is filled in for depth 1 only: with more in flight, waiting in line dominates.
type latencyReport struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

type pubReport struct {
	Tool        string         `json:"tool"`
	Connections int            `json:"connections"`
	BodyBytes   int            `json:"body_bytes"`
	Batch       int            `json:"batch"`
	Depth       int            `json:"depth"`
	LatencyUS   *latencyReport `json:"latency_us,omitempty"`
	rate
}

// publisher is one connection of nsq-pub.
//
// block holds equal commands back to back, so any number of them up to blockCommands is one write
// of a prefix.
type publisher struct {
	conn          *frameConn
	block         []byte
	commandBytes  int
	blockCommands int
	depth         int
	acknowledged  int64
	lastReply     time.Time
	latency       *histogram // nil unless depth is 1
}

func newPublisher(conn *frameConn, command []byte, depth int) *publisher {
	blockCommands := min(depth, max(1, publishBlockBytes/len(command)))
	p := &publisher{
		conn:          conn,
		block:         bytes.Repeat(command, blockCommands),
		commandBytes:  len(command),
		blockCommands: blockCommands,
		depth:         depth,
	}
	if depth == 1 {
		p.latency = new(histogram)
	}
	return p
}

// run publishes until the deadline, or until limit commands are sent (-1: no limit), and waits for
// every reply.
//
// The window is refilled when a quarter of it is free, not at every reply: a server that answers
// each command with its own write would otherwise draw one small write per command from here, and
// the generator's system calls would be measured instead of the server.
func (p *publisher) run(deadline time.Time, limit int64) error {
	if limit < 0 {
		p.conn.SetReadDeadline(deadline.Add(replyTimeout))
	}
	refillAt := p.depth - max(1, p.depth/4)
	var sent int64
	inFlight := 0
	var sentAt time.Time
	for {
		now := time.Now()
		open := sent != limit && (limit >= 0 || now.Before(deadline))
		if !open && inFlight == 0 {
			return nil
		}
		for open && inFlight <= refillAt && sent != limit {
			n := min(p.depth-inFlight, p.blockCommands)
			if limit >= 0 {
				n = int(min(int64(n), limit-sent))
			}
			if _, err := p.conn.Write(p.block[:n*p.commandBytes]); err != nil {
				return err
			}
			sentAt = now
			sent += int64(n)
			inFlight += n
		}
		replies, err := p.readReplies()
		if err != nil {
			return err
		}
		if replies > inFlight {
			return fmt.Errorf("%d replies to %d commands", replies, inFlight)
		}
		inFlight -= replies
		if p.latency != nil && replies == 1 {
			p.latency.record(p.lastReply.Sub(sentAt))
		}
	}
}

// readReplies returns how many OK frames are there, after one read unless some frame is buffered.
func (p *publisher) readReplies() (int, error) {
	replies := 0
	for hasRead := false; ; {
		frameType, data, ok := p.conn.next()
		if !ok && hasRead {
			break
		}
		hasRead = true
		if !ok {
			if err := p.conn.fill(); err != nil {
				return replies, err
			}
			continue
		}
		isOK, err := p.conn.isOK(frameType, data)
		if err != nil {
			return replies, err
		}
		if isOK {
			replies++
		}
	}
	p.acknowledged += int64(replies)
	p.lastReply = time.Now()
	return replies, nil
}

func runPub(flags *flag.FlagSet, args []string) error {
	var settings pubSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := publish(settings)
	if err != nil {
		return err
	}
	text := result.rate.String()
	if l := result.LatencyUS; l != nil {
		text += fmt.Sprintf("\nlatency us: p50 %.1f, p99 %.1f, p99.9 %.1f, max %.1f", l.P50, l.P99, l.P999, l.Max)
	}
	return report(settings.json, result, text)
}

// publish runs one load and returns its figures; the clock runs from the first write to the last reply.
func publish(settings pubSettings) (pubReport, error) {
	body := bytes.Repeat([]byte{'x'}, settings.bodyBytes)
	command := pubCommand(settings.topic, body)
	if settings.batch > 1 {
		command = mpubCommand(settings.topic, body, settings.batch)
	}
	conns, err := openAll(settings.address, "nsq-pub", settings.connections)
	if err != nil {
		return pubReport{}, err
	}
	defer closeAll(conns)

	publishers := make([]*publisher, len(conns))
	for i, conn := range conns {
		publishers[i] = newPublisher(conn, command, settings.depth)
		if settings.spin {
			if err := conn.spin(); err != nil {
				return pubReport{}, err
			}
		}
	}
	startCPU, start := cpuTime(), time.Now()
	err = runAll(conns, func(i int) error {
		return publishers[i].run(start.Add(settings.duration), settings.commandsPerConnection())
	})
	if err != nil {
		return pubReport{}, err
	}
	return summarise(settings, publishers, start, cpuTime()-startCPU), nil
}

func summarise(settings pubSettings, publishers []*publisher, start time.Time, cpu time.Duration) pubReport {
	var commands int64
	end := start
	latency := new(histogram)
	for _, p := range publishers {
		commands += p.acknowledged
		if p.lastReply.After(end) {
			end = p.lastReply
		}
		if p.latency != nil {
			latency.add(p.latency)
		}
	}
	messages := commands * int64(settings.batch)
	result := pubReport{
		Tool:        "nsq-pub",
		Connections: settings.connections,
		BodyBytes:   settings.bodyBytes,
		Batch:       settings.batch,
		Depth:       settings.depth,
		rate:        newRate(messages, messages*int64(settings.bodyBytes), end.Sub(start), cpu),
	}
	if latency.total > 0 {
		result.LatencyUS = newLatencyReport(latency)
	}
	return result
}

func newLatencyReport(latency *histogram) *latencyReport {
	return &latencyReport{
		P50:  microseconds(latency.percentile(0.50)),
		P99:  microseconds(latency.percentile(0.99)),
		P999: microseconds(latency.percentile(0.999)),
		Max:  microseconds(latency.largest),
	}
}

func microseconds(d time.Duration) float64 {
	return float64(d.Nanoseconds()) / 1e3
}
