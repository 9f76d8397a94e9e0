SELECT
    bidder,
    count(*) AS bid_count,
    window.start AS starttime,
    window.end AS endtime
FROM (SELECT bidder, current_timestamp() AS p_time FROM bid)
GROUP BY bidder, window(p_time, '10 seconds')
