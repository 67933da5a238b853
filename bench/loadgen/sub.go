package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"sync/atomic"
	"time"
)

// subSettings are the flags of nsq-sub.
type subSettings struct {
	address     string
	topic       string
	channel     string
	connections int
	ready       int
	finish      bool
	duration    time.Duration
	count       int64
	json        bool
}

func (s *subSettings) register(flags *flag.FlagSet) {
	flags.StringVar(&s.address, "address", "127.0.0.1:4150", "server's NSQ TCP address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to consume")
	flags.StringVar(&s.channel, "channel", "ch", "channel to consume from")
	flags.IntVar(&s.connections, "connections", 1, "connections")
	flags.IntVar(&s.ready, "rdy", 2500, "RDY window of each connection")
	flags.BoolVar(&s.finish, "finish", true, "finish what is delivered; without it each connection gets one window")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long to consume")
	flags.Int64Var(&s.count, "count", 0, "stop once this many messages are delivered, if that is before -duration")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *subSettings) validate() error {
	if min(s.connections, s.ready) < 1 {
		return errors.New("-connections and -rdy must be at least 1")
	}
	return nil
}

type subReport struct {
	Tool        string  `json:"tool"`
	Connections int     `json:"connections"`
	Ready       int     `json:"rdy"`
	Finished    int64   `json:"finished"`
	FinishedPS  float64 `json:"finished_per_s"`
	rate                // of deliveries
}

// subscriber is one connection of nsq-sub.
//
// finishes holds FIN commands back to back with room for their ids: settling a read copies 16 bytes
// per message into it and writes a prefix.
type subscriber struct {
	conn      *frameConn
	finish    bool
	finishes  []byte
	delivered int64
	finished  int64
	bodyBytes int64
	lastRead  time.Time
}

// finishBlock bounds one write of FIN commands.
const finishBlock = 4096

func newSubscriber(conn *frameConn, finish bool) *subscriber {
	one := bytes.Repeat([]byte{'0'}, finishBytes)
	copy(one, "FIN ")
	one[finishBytes-1] = '\n'
	return &subscriber{conn: conn, finish: finish, finishes: bytes.Repeat(one, finishBlock)}
}

// run consumes until the deadline, or until all connections together have taken limit messages
// (0: no limit).
func (s *subscriber) run(deadline time.Time, limit int64, total *atomic.Int64) error {
	s.conn.SetReadDeadline(deadline)
	for {
		n, err := s.settle()
		if err != nil {
			return err
		}
		if n > 0 {
			s.lastRead = time.Now()
			if taken := total.Add(int64(n)); limit > 0 && taken >= limit || s.lastRead.After(deadline) {
				return nil
			}
		}
		err = s.conn.fill()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// settle takes every whole frame read so far and finishes its messages; it returns their number.
func (s *subscriber) settle() (int, error) {
	taken, pending := 0, 0
	for {
		frameType, data, ok := s.conn.next()
		if !ok {
			break
		}
		if frameType != frameMessage {
			if _, err := s.conn.isOK(frameType, data); err != nil {
				return taken, err
			}
			continue
		}
		taken++
		s.bodyBytes += int64(len(data) - messageHeadBytes)
		copy(s.finishes[pending*finishBytes+len("FIN "):], data[messageIDStart:messageHeadBytes])
		pending++
		if pending == finishBlock {
			if err := s.writeFinishes(pending); err != nil {
				return taken, err
			}
			pending = 0
		}
	}
	s.delivered += int64(taken)
	return taken, s.writeFinishes(pending)
}

func (s *subscriber) writeFinishes(count int) error {
	if !s.finish || count == 0 {
		return nil
	}
	s.finished += int64(count)
	_, err := s.conn.Write(s.finishes[:count*finishBytes])
	return err
}

// close leaves the channel and waits until the server has taken every FIN: it answers CLS in
// command order. What it delivers meanwhile is finished too, but not counted.
func (s *subscriber) close() error {
	if _, err := s.conn.Write([]byte("CLS\n")); err != nil {
		return err
	}
	s.conn.SetReadDeadline(time.Now().Add(replyTimeout))
	for {
		frameType, data, ok := s.conn.next()
		switch {
		case !ok:
			if err := s.conn.fill(); err != nil {
				return err
			}
		case frameType == frameResponse && bytes.Equal(data, closeWait):
			return s.conn.Close()
		case frameType == frameMessage:
			copy(s.finishes[len("FIN "):], data[messageIDStart:messageHeadBytes])
			if s.finish {
				if _, err := s.conn.Write(s.finishes[:finishBytes]); err != nil {
					return err
				}
			}
		default:
			if _, err := s.conn.isOK(frameType, data); err != nil {
				return err
			}
		}
	}
}

func runSub(flags *flag.FlagSet, args []string) error {
	var settings subSettings
	settings.register(flags)
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	result, err := consume(settings)
	if err != nil {
		return err
	}
	return report(settings.json, result, result.rate.String())
}

// consume runs one load; the clock runs from the first RDY to the last delivery, so a channel that
// ran dry early does not lower the figure.
func consume(settings subSettings) (subReport, error) {
	conns, err := openAll(settings.address, "nsq-sub", settings.connections)
	if err != nil {
		return subReport{}, err
	}
	defer closeAll(conns)

	subscribers := make([]*subscriber, len(conns))
	for i, conn := range conns {
		if err := conn.request(subCommand(settings.topic, settings.channel)); err != nil {
			return subReport{}, err
		}
		subscribers[i] = newSubscriber(conn, settings.finish)
	}
	startCPU, start := cpuTime(), time.Now()
	var total atomic.Int64
	err = runAll(conns, func(i int) error {
		if _, err := conns[i].Write(rdyCommand(settings.ready)); err != nil {
			return err
		}
		if err := subscribers[i].run(start.Add(settings.duration), settings.count, &total); err != nil {
			return err
		}
		// Whoever reaches the count first ends the wait of the others.
		for _, conn := range conns {
			conn.SetReadDeadline(time.Now())
		}
		return nil
	})
	cpu := cpuTime() - startCPU
	if err != nil {
		return subReport{}, err
	}
	result := subReport{Tool: "nsq-sub", Connections: settings.connections, Ready: settings.ready}
	var delivered, bodyBytes int64
	end := start
	for _, s := range subscribers {
		delivered += s.delivered
		bodyBytes += s.bodyBytes
		result.Finished += s.finished
		if s.lastRead.After(end) {
			end = s.lastRead
		}
	}
	result.rate = newRate(delivered, bodyBytes, end.Sub(start), cpu)
	result.FinishedPS = float64(result.Finished) / result.Seconds
	return result, runAll(conns, func(i int) error { return subscribers[i].close() })
}
