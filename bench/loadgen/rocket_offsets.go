package main

import (
	"fmt"
	"math/bits"
	"time"
)

const (
	// How long a server may take to count what it has acknowledged: RocketMQ does it behind the answer.
	settleTimeout  = 30 * time.Second
	settleInterval = 10 * time.Millisecond
	// What a server may claim before the claim counts as nonsense.
	maxOffsetsKept = 1 << 31
)

// offsetSet notes which offsets of one queue were given to messages of this run.
type offsetSet struct {
	base  int64 // offset of the queue's first message of this run
	words []uint64
	count int64
}

// add notes the offsets of messages one behind the other.
func (s *offsetSet) add(first int64, messages int) error {
	for i := range int64(messages) {
		at := first + i - s.base
		if at < 0 || at >= maxOffsetsKept {
			return fmt.Errorf("offset %d of a queue that began at %d", first+i, s.base)
		}
		for at/64 >= int64(len(s.words)) {
			s.words = append(s.words, 0)
		}
		bit := uint64(1) << (at % 64)
		if s.words[at/64]&bit != 0 {
			return fmt.Errorf("offset %d was given twice", first+i)
		}
		s.words[at/64] |= bit
		s.count++
	}
	return nil
}

// merge adds the offsets that another connection was given.
func (s *offsetSet) merge(other *offsetSet) error {
	for i, word := range other.words {
		if i == len(s.words) {
			s.words = append(s.words, 0)
		}
		if s.words[i]&word != 0 {
			first := s.base + int64(64*i+bits.TrailingZeros64(s.words[i]&word))
			return fmt.Errorf("offset %d was given to two connections", first)
		}
		s.words[i] |= word
	}
	s.count += other.count
	return nil
}

// checkDense fails if there is a gap between the first offset and the last.
func (s *offsetSet) checkDense() error {
	for i := range s.count {
		if s.words[i/64]&(1<<(i%64)) == 0 {
			return fmt.Errorf("offset %d was left out", s.base+i)
		}
	}
	return nil
}

// checkOffsets fails unless the senders were given every offset of each queue once, and the server counts as many.
func checkOffsets(conn *frameConn, topic string, senders []*rocketSender) error {
	for queue := range senders[0].offsets {
		all := &senders[0].offsets[queue]
		for _, sender := range senders[1:] {
			if err := all.merge(&sender.offsets[queue]); err != nil {
				return fmt.Errorf("queue %d: %w", queue, err)
			}
		}
		if err := all.checkDense(); err != nil {
			return fmt.Errorf("queue %d: %w", queue, err)
		}
		if err := awaitMaxOffset(conn, topic, queue, all.base+all.count); err != nil {
			return err
		}
	}
	return nil
}

func awaitMaxOffset(conn *frameConn, topic string, queue int, want int64) error {
	giveUp := time.Now().Add(settleTimeout)
	for {
		conn.SetReadDeadline(time.Now().Add(replyTimeout))
		got, err := conn.maxOffset(topic, queue)
		if err != nil {
			return err
		}
		if got == want {
			return nil
		}
		if got > want || time.Now().After(giveUp) {
			return fmt.Errorf("queue %d ends at %d, acknowledged were messages up to %d", queue, got, want)
		}
		time.Sleep(settleInterval)
	}
}
