SELECT
    Q.seller,
    AVG(Q.price) OVER
        (PARTITION BY Q.seller ORDER BY Q.`dateTime` ROWS BETWEEN 10 PRECEDING AND CURRENT ROW)
FROM (
    SELECT A.seller, B.price, B.`dateTime`,
        ROW_NUMBER() OVER (PARTITION BY A.id, A.seller ORDER BY B.price DESC) AS rownum
    FROM auction AS A,
        bid AS B
    WHERE A.id = B.auction
        and B.`dateTime` between A.`dateTime` and A.expires
) AS Q
WHERE Q.rownum <= 1
