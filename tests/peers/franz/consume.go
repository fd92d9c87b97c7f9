package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// consume reads in a group, one record after the other, as keylane's sequential does.
func consume(ctx context.Context, args []string) error {
	c := newCommon("consume")
	group := c.flags.String("g", "franz-consume", "group")
	maxPoll := c.flags.Int("max-poll", 10000, "records a poll")
	delay := c.flags.Duration("delay", 0, "work per record")
	commitEach := c.flags.Bool("commit-each", false, "commit after each poll, not every 5 s")
	opts := append(c.parse(args), kgo.ConsumerGroup(*group), kgo.ConsumeTopics(*c.topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if *commitEach {
		opts = append(opts, kgo.DisableAutoCommit())
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return err
	}
	defer client.Close()

	var start time.Time
	records, bytes := 0, 0
	for *c.records == 0 || records < *c.records {
		fetches := client.PollRecords(ctx, *maxPoll)
		if errors.Is(fetches.Err0(), context.Canceled) {
			break
		}
		if start.IsZero() && fetches.NumRecords() > 0 {
			start = time.Now()
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if *delay > 0 {
				time.Sleep(*delay)
			}
			records++
			bytes += len(record.Value)
		})
		if *commitEach {
			if err := client.CommitUncommittedOffsets(ctx); err != nil {
				return err
			}
		}
	}
	done(records, start)
	return client.CommitUncommittedOffsets(context.Background())
}
