package main

import (
	"errors"
	"flag"
	"fmt"
	"math/bits"
	"time"
)

// rocketSendSettings are the flags of rocket-send.
type rocketSendSettings struct {
	address     string
	topic       string
	queues      int
	connections int
	bodyBytes   int
	batch       int
	depth       int
	keys        bool
	spin        bool
	duration    time.Duration
	count       int64
	json        bool
}

func (s *rocketSendSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:10911", "broker's address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to send to; it is created")
	flags.IntVar(&s.queues, "queues", 4, "queues of the topic, used in turn")
	flags.IntVar(&s.connections, "connections", 1, "connections")
	flags.IntVar(&s.bodyBytes, "body", 100, "body size in bytes")
	flags.IntVar(&s.batch, "batch", 1, "messages per request: 1 is SEND_MESSAGE_V2, more SEND_BATCH_MESSAGE")
	flags.IntVar(&s.depth, "depth", 16, "requests in flight per connection")
	flags.BoolVar(&s.keys, "keys", false, "give every message a key of its own beside its unique id")
	flags.BoolVar(&s.spin, "spin", false, "poll for answers instead of sleeping: takes this side's wake-up out of the latency; needs a core of its own")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long to send")
	flags.Int64Var(&s.count, "count", 0, "stop after this many messages (rounded up to whole requests) instead of after -duration")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *rocketSendSettings) validate() error {
	if min(s.connections, s.bodyBytes, s.batch, s.depth) < 1 {
		return errors.New("-connections, -body, -batch and -depth must be at least 1")
	}
	if s.queues < 1 || s.queues > 9 {
		return errQueues
	}
	if s.spin && s.connections > 1 {
		return errors.New("-spin takes a whole core and so only one connection")
	}
	return nil
}

// requestsPerConnection is the limit of each connection, or -1 when the duration is the limit.
func (s *rocketSendSettings) requestsPerConnection() int64 {
	if s.count == 0 {
		return -1
	}
	perRequest := int64(s.batch * s.connections)
	return (s.count + perRequest - 1) / perRequest
}

type rocketSendReport struct {
	Tool        string         `json:"tool"`
	Connections int            `json:"connections"`
	BodyBytes   int            `json:"body_bytes"`
	Batch       int            `json:"batch"`
	Depth       int            `json:"depth"`
	Keys        bool           `json:"keys"`
	LatencyUS   *latencyReport `json:"latency_us,omitempty"`
	rate
}

// pendingSend is a request without an answer yet; its opaque is 0 once it has one.
type pendingSend struct {
	opaque uint32
	queue  int
	sentAt time.Time
}

// rocketSender is one connection of rocket-send.
//
// block has room for frames of one write, laid out once: before a write only their numbers are patched. pending is a
// ring by opaque, wide enough for answers out of order.
type rocketSender struct {
	conn         *frameConn
	template     sendTemplate
	block        []byte
	blockFrames  int
	depth        int
	pending      []pendingSend
	opaque       uint32
	nextMessage  uint64
	inFlight     int
	sent         int64
	acknowledged int64
	offsets      []offsetSet // by queue
	latency      histogram
	lastReply    time.Time
}

// newRocketSender lays out a connection's frames; bases are the offsets at which the queues begin.
func newRocketSender(conn *frameConn, template sendTemplate, depth int, firstMessage uint64, bases []int64) *rocketSender {
	frames := min(depth, max(1, publishBlockBytes/len(template.frame)))
	s := &rocketSender{
		conn:        conn,
		template:    template,
		blockFrames: frames,
		depth:       depth,
		pending:     make([]pendingSend, 1<<bits.Len(uint(4*depth))),
		opaque:      firstOpaque,
		nextMessage: firstMessage,
		offsets:     make([]offsetSet, len(bases)),
	}
	for range frames {
		s.block = append(s.block, template.frame...)
	}
	for queue, base := range bases {
		s.offsets[queue].base = base
	}
	return s
}

// run sends until the deadline, or until limit requests are sent (-1: no limit), and waits for every answer.
//
// The window is refilled when a quarter of it is free, as that of nsq-pub is and for the same reason.
func (s *rocketSender) run(deadline time.Time, limit int64) error {
	refillAt := s.depth - max(1, s.depth/4)
	for {
		now := time.Now()
		open := s.sent != limit && (limit >= 0 || now.Before(deadline))
		if !open && s.inFlight == 0 {
			return nil
		}
		for open && s.inFlight <= refillAt && s.sent != limit {
			most := min(s.depth-s.inFlight, s.blockFrames)
			if limit >= 0 {
				most = int(min(int64(most), limit-s.sent))
			}
			n := s.prepare(most, now)
			if n == 0 {
				break // an answer that is long overdue holds up the ring
			}
			if _, err := s.conn.Write(s.block[:n*len(s.template.frame)]); err != nil {
				return err
			}
			s.sent += int64(n)
			s.inFlight += n
		}
		s.conn.SetReadDeadline(now.Add(replyTimeout))
		if err := s.readAnswers(); err != nil {
			return err
		}
	}
}

// prepare patches the frames of up to most requests and returns how many there is room for.
func (s *rocketSender) prepare(most int, now time.Time) int {
	length := len(s.template.frame)
	for i := range most {
		slot := &s.pending[int(s.opaque)&(len(s.pending)-1)]
		if slot.opaque != 0 {
			return i
		}
		queue := int(s.opaque) % len(s.offsets)
		*slot = pendingSend{s.opaque, queue, now}
		s.template.patch(s.block[i*length:(i+1)*length], s.opaque, queue, s.nextMessage)
		s.nextMessage += uint64(s.template.messages)
		s.opaque++
		if s.opaque > lastOpaque {
			s.opaque = firstOpaque
		}
	}
	return most
}

// readAnswers takes every answer that is there, after one read unless one is buffered.
func (s *rocketSender) readAnswers() error {
	for hasRead := false; ; {
		header, _, ok, err := s.conn.nextRocket()
		if err != nil {
			return err
		}
		if !ok && hasRead {
			return nil
		}
		hasRead = true
		if !ok {
			if err := s.conn.fill(); err != nil {
				return err
			}
			s.lastReply = time.Now()
			continue
		}
		if isAnswer, err := isRocketAnswer(header); err != nil {
			return err
		} else if !isAnswer {
			continue
		}
		if err := s.settle(header); err != nil {
			return err
		}
	}
}

// settle notes one answer.
func (s *rocketSender) settle(header []byte) error {
	if err := checkSuccess(header); err != nil {
		return err
	}
	opaque, err := headerNumber(header, keyOpaque)
	if err != nil {
		return err
	}
	slot := &s.pending[int(opaque)&(len(s.pending)-1)]
	if slot.opaque == 0 || int64(slot.opaque) != opaque {
		return fmt.Errorf("answer to nothing: %s", header)
	}
	queue, err := headerNumber(header, keyQueue)
	if err == nil && queue != int64(slot.queue) {
		err = fmt.Errorf("sent to queue %d: %s", slot.queue, header)
	}
	if err != nil {
		return err
	}
	offset, err := headerNumber(header, keyOffset)
	if err == nil {
		err = s.offsets[slot.queue].add(offset, s.template.messages)
	}
	if err != nil {
		return err
	}
	s.latency.record(s.lastReply.Sub(slot.sentAt))
	slot.opaque = 0
	s.inFlight--
	s.acknowledged++
	return nil
}

func runRocketSend(flags *flag.FlagSet, args []string) error {
	var settings rocketSendSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := rocketSend(settings)
	if err != nil {
		return err
	}
	l := result.LatencyUS
	text := result.rate.String() +
		fmt.Sprintf("\nlatency us: p50 %.1f, p99 %.1f, p99.9 %.1f, max %.1f", l.P50, l.P99, l.P999, l.Max)
	return report(settings.json, result, text)
}

// rocketSend runs one load, checks every offset, and returns its figures; the clock runs from the first write to the
// last answer.
func rocketSend(settings rocketSendSettings) (rocketSendReport, error) {
	conns, err := openRocket(settings.address, settings.connections)
	if err != nil {
		return rocketSendReport{}, err
	}
	defer closeAll(conns)
	bases, err := prepareTopic(conns[0], settings.topic, settings.queues)
	if err != nil {
		return rocketSendReport{}, err
	}
	template := newSendTemplate(settings.topic, settings.bodyBytes, settings.batch, settings.keys)
	senders := make([]*rocketSender, len(conns))
	for i, conn := range conns {
		senders[i] = newRocketSender(conn, template, settings.depth, uint64(i)<<28, bases)
		if settings.spin {
			if err := conn.spin(); err != nil {
				return rocketSendReport{}, err
			}
		}
	}
	startCPU, start := cpuTime(), time.Now()
	err = runAll(conns, func(i int) error {
		return senders[i].run(start.Add(settings.duration), settings.requestsPerConnection())
	})
	if err != nil {
		return rocketSendReport{}, err
	}
	result := summariseRocketSend(settings, senders, start, cpuTime()-startCPU)
	return result, checkOffsets(conns[0], settings.topic, senders)
}

// prepareTopic creates the topic and returns the offset at which each of its queues stands.
func prepareTopic(conn *frameConn, topic string, queues int) ([]int64, error) {
	conn.SetReadDeadline(time.Now().Add(replyTimeout))
	if err := conn.createTopic(topic, queues); err != nil {
		return nil, err
	}
	return maxOffsets(conn, topic, queues)
}

func maxOffsets(conn *frameConn, topic string, queues int) ([]int64, error) {
	offsets := make([]int64, queues)
	for queue := range offsets {
		offset, err := conn.maxOffset(topic, queue)
		if err != nil {
			return nil, err
		}
		offsets[queue] = offset
	}
	return offsets, nil
}

func summariseRocketSend(
	settings rocketSendSettings, senders []*rocketSender, start time.Time, cpu time.Duration,
) rocketSendReport {
	var requests int64
	end := start
	latency := new(histogram)
	for _, sender := range senders {
		requests += sender.acknowledged
		if sender.lastReply.After(end) {
			end = sender.lastReply
		}
		latency.add(&sender.latency)
	}
	messages := requests * int64(settings.batch)
	return rocketSendReport{
		Tool:        "rocket-send",
		Connections: settings.connections,
		BodyBytes:   settings.bodyBytes,
		Batch:       settings.batch,
		Depth:       settings.depth,
		Keys:        settings.keys,
		LatencyUS:   newLatencyReport(latency),
		rate:        newRate(messages, messages*int64(settings.bodyBytes), end.Sub(start), cpu),
	}
}
