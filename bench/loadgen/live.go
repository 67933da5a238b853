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
	// A message carries the time it was sent at the beginning of its body.
	sentAtBytes = 8
	// How long after the last message was sent the last one may come.
	arrivalTimeout = 30 * time.Second
	// Consumers are ready before the first message is sent.
	consumersSettle = 200 * time.Millisecond
)

// liveSettings are the flags of nsq-live and rocket-live: messages are consumed while they are published.
type liveSettings struct {
	address    string
	topic      string
	publishers int
	consumers  int
	perSecond  float64
	bodyBytes  int
	duration   time.Duration
	json       bool
}

func (s *liveSettings) register(flags *flag.FlagSet, address string) {
	flags.StringVar(&s.address, "address", address, "server's address")
	flags.StringVar(&s.topic, "topic", "bench", "topic to publish to and consume from")
	flags.IntVar(&s.publishers, "publishers", 4, "connections that publish, each with one message in flight")
	flags.IntVar(&s.consumers, "consumers", 4, "connections that consume")
	flags.Float64Var(&s.perSecond, "rate", 1000, "messages per second of all publishers; 0: each sends the next when the last is answered")
	flags.IntVar(&s.bodyBytes, "body", 200, "body size in bytes")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long to publish")
	flags.BoolVar(&s.json, "json", false, "print one JSON object")
}

func (s *liveSettings) validate() error {
	if min(s.publishers, s.consumers) < 1 || s.perSecond < 0 {
		return errors.New("-publishers and -consumers must be at least 1, -rate not below 0")
	}
	if s.bodyBytes < sentAtBytes {
		return fmt.Errorf("-body must be at least %d", sentAtBytes)
	}
	return nil
}

// topicOf returns the topic of a publisher or consumer by its number.
func (s *liveSettings) topicOf(number, topics int) string {
	if topics == 1 {
		return s.topic
	}
	return fmt.Sprintf("%s-%d", s.topic, number%topics)
}

type liveReport struct {
	Tool       string         `json:"tool"`
	Publishers int            `json:"publishers"`
	Consumers  int            `json:"consumers"`
	PerSecond  float64        `json:"rate"`
	Published  int64          `json:"published"`
	LatencyUS  *latencyReport `json:"latency_us"` // from the write of a message to its arrival
	AnswerUS   *latencyReport `json:"answer_us"`  // from there to the answer
	rate                      // of what arrived
}

// arrivals is what all consumers have got.
type arrivals struct {
	count   atomic.Int64
	mu      sync.Mutex
	latency histogram
}

// note counts messages that came in one read; bodies are theirs.
func (a *arrivals) note(bodies [][]byte) {
	now := time.Now().UnixNano()
	a.mu.Lock()
	for _, body := range bodies {
		a.latency.record(time.Duration(now - int64(binary.BigEndian.Uint64(body))))
	}
	a.mu.Unlock()
	a.count.Add(int64(len(bodies)))
}

// stampNow writes the present time where a message carries it.
func stampNow(body []byte) { binary.BigEndian.PutUint64(body, uint64(time.Now().UnixNano())) }

// publishAtRate calls send as often as the rate of one publisher allows, and notes how long each call takes. One that
// is late is not waited for: the next follow sooner. Without an interval each is called when the last has returned.
func publishAtRate(start time.Time, interval time.Duration, end time.Time, answer *histogram, send func() error) (int64, error) {
	for sent := int64(0); ; sent++ {
		due := start.Add(time.Duration(sent) * interval)
		if interval == 0 {
			due = time.Now()
		}
		if due.After(end) {
			return sent, nil
		}
		time.Sleep(time.Until(due))
		began := time.Now()
		if err := send(); err != nil {
			return sent, err
		}
		answer.record(time.Since(began))
	}
}

// runLive publishes with one sender per connection, and waits until everything has arrived.
func runLive(tool string, settings liveSettings, conns []*frameConn, sends []func() error, arrived *arrivals) error {
	time.Sleep(consumersSettle)
	answers := make([]histogram, len(conns))
	interval := time.Duration(0)
	if settings.perSecond > 0 {
		interval = time.Duration(float64(len(conns)) / settings.perSecond * float64(time.Second))
	}
	startCPU, start := cpuTime(), time.Now()
	end := start.Add(settings.duration)
	var published atomic.Int64
	err := runAll(conns, func(i int) error {
		begin := start.Add(interval * time.Duration(i) / time.Duration(len(conns)))
		sent, err := publishAtRate(begin, interval, end, &answers[i], sends[i])
		published.Add(sent)
		return err
	})
	if err != nil {
		return err
	}
	elapsed, cpu := time.Since(start), cpuTime()-startCPU
	for giveUp := time.Now().Add(arrivalTimeout); arrived.count.Load() < published.Load(); {
		if time.Now().After(giveUp) {
			return fmt.Errorf("%d of %d messages arrived", arrived.count.Load(), published.Load())
		}
		time.Sleep(time.Millisecond)
	}
	if interval == 0 { // what has not arrived yet is no throughput
		elapsed, cpu = time.Since(start), cpuTime()-startCPU
	}
	answer := new(histogram)
	for i := range answers {
		answer.add(&answers[i])
	}
	arrived.mu.Lock()
	defer arrived.mu.Unlock()
	count := arrived.count.Load()
	result := liveReport{
		Tool: tool, Publishers: settings.publishers, Consumers: settings.consumers, PerSecond: settings.perSecond,
		Published: published.Load(), LatencyUS: newLatencyReport(&arrived.latency), AnswerUS: newLatencyReport(answer),
		rate: newRate(count, count*int64(settings.bodyBytes), elapsed, cpu),
	}
	l := result.LatencyUS
	text := result.rate.String() + fmt.Sprintf("\narrived after us: p50 %.1f, p99 %.1f, max %.1f", l.P50, l.P99, l.Max)
	return report(settings.json, result, text)
}

// consumeLive calls take for what each consumer's connection has read, until close is called.
func consumeLive(conns []*frameConn, take func(i int) error) (close func() error) {
	var stopping atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- runAll(conns, func(i int) error {
			for {
				err := conns[i].fill()
				if err == nil {
					err = take(i)
				}
				if err != nil && stopping.Load() {
					return nil
				}
				if err != nil {
					return fmt.Errorf("consumer: %w", err)
				}
			}
		})
	}()
	return func() error {
		stopping.Store(true)
		closeAll(conns)
		return <-done
	}
}

func runNSQLive(flags *flag.FlagSet, args []string) error {
	var settings liveSettings
	var channel string
	var ready, topics int
	settings.register(flags, "127.0.0.1:4150")
	flags.StringVar(&channel, "channel", "ch", "channel to consume from")
	flags.IntVar(&ready, "rdy", 100, "RDY window of each consumer")
	flags.IntVar(&topics, "topics", 1, "topics that publishers and consumers are spread over; above 1 their names end in a number")
	flags.Parse(args)
	if err := settings.validate(); err != nil {
		return err
	}
	if topics < 1 || topics > min(settings.publishers, settings.consumers) {
		return errors.New("-topics must be at least 1, and have a publisher and a consumer each")
	}
	consumers, err := openAll(settings.address, "nsq-live-sub", settings.consumers)
	if err != nil {
		return err
	}
	arrived := new(arrivals)
	for i, conn := range consumers {
		if err := conn.request(subCommand(settings.topicOf(i, topics), channel)); err != nil {
			return err
		}
		if _, err := conn.Write(rdyCommand(ready)); err != nil {
			return err
		}
	}
	stop := consumeLive(consumers, func(i int) error { return finishLive(consumers[i], arrived) })
	publishers, err := openAll(settings.address, "nsq-live-pub", settings.publishers)
	if err != nil {
		return err
	}
	defer closeAll(publishers)
	sends := make([]func() error, len(publishers))
	for i, conn := range publishers {
		command := pubCommand(settings.topicOf(i, topics), make([]byte, settings.bodyBytes))
		body := command[len(command)-settings.bodyBytes:]
		sends[i] = func() error {
			stampNow(body)
			return conn.request(command)
		}
	}
	return errors.Join(runLive("nsq-live", settings, publishers, sends, arrived), stop())
}

// finishLive notes and finishes the messages of one read.
func finishLive(conn *frameConn, arrived *arrivals) error {
	var bodies [][]byte
	var finishes []byte
	for {
		frameType, data, ok := conn.next()
		if !ok {
			break
		}
		if frameType != frameMessage {
			if _, err := conn.isOK(frameType, data); err != nil {
				return err
			}
			continue
		}
		bodies = append(bodies, data[messageHeadBytes:])
		finishes = fmt.Appendf(finishes, "FIN %s\n", data[messageIDStart:messageHeadBytes])
	}
	if len(bodies) == 0 {
		return nil
	}
	arrived.note(bodies)
	_, err := conn.Write(finishes)
	return err
}
